#!/usr/bin/env bash
# Install Debian's packages for tests/cluster (Slurm, Docker, debootstrap) and for the tests of pages (chromium), which
# are skipped without them. Needs root.
set -euo pipefail
packages=()
need() { # a program, and the packages that bring it
    command -v "$1" > /dev/null || packages+=("${@:2}")
}
need slurmctld slurm-wlm
need munged munge
need tc iproute2
need nsenter util-linux
need debootstrap debootstrap
need eatmydata eatmydata
need chromium chromium fonts-dejavu-core
[ -x /usr/sbin/dockerd ] && [ -x /usr/bin/docker ] || packages+=(docker.io iptables) # not a client elsewhere on the PATH
[ ${#packages[@]} = 0 ] && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null
