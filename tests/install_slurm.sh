#!/usr/bin/env bash
# Install Debian's Slurm for tests/flows/test_slurm.py, which is skipped without it. Needs root.
set -euo pipefail
command -v slurmctld > /dev/null && command -v munged > /dev/null && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends slurm-wlm munge > /dev/null
