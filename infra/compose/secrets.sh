#!/bin/sh
# Generate the missing secrets as files in secrets/, next to this script. Git ignores them, and nothing is printed.
set -eu
folder="$(dirname "$0")/secrets"
umask 077
mkdir -p "$folder"
cd "$folder"

draw() { # 40 letters and digits: no quoting needed
    [ -s "$1" ] || LC_ALL=C tr -dc 'A-Za-z0-9' < /dev/urandom | head -c 40 > "$1"
}

for name in postgres_password prefect_database_password mlflow_database_password mlflow_password mlflow_session_key \
    store_key_id store_key; do
    draw "$name"
done
[ -s prefect_login ] || { draw .drawn && printf 'cloze:%s' "$(cat .drawn)" > prefect_login && rm .drawn; }
printf '{"identities": [{"name": "cloze", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}' \
    "$(cat store_key_id)" "$(cat store_key)" > store_identities
chmod 0444 ./* # containers have other users; the directory itself is private to this user
