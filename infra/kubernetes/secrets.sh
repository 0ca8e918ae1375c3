#!/bin/sh
# Generate the cluster's secrets. Nothing is printed or written to disk.
# For databases outside the cluster (AWS), set PREFECT_DATABASE_PASSWORD and MLFLOW_DATABASE_PASSWORD first.
set -eu
namespace=cloze

draw() { # 40 letters and digits
    LC_ALL=C tr -dc 'A-Za-z0-9' < /dev/urandom | head -c 40
}

secret() { # secret NAME < KEY=VALUE lines (a command line would be visible to other users)
    kubectl --namespace "$namespace" create secret generic "$1" --from-env-file=/dev/stdin
}

kubectl get namespace "$namespace" > /dev/null 2>&1 || kubectl apply --filename "$(dirname "$0")/base/namespace.yaml" --namespace "$namespace"

for name in databases prefect mlflow store job; do # the secrets depend on one another: create all or none
    if kubectl --namespace "$namespace" get secret "$name" > /dev/null 2>&1; then
        echo "secrets.sh: secret $name exists; to generate all secrets again, delete databases, prefect, mlflow, store and job first" >&2
        exit 2
    fi
done

mlflow=$(draw) key_id=$(draw) key=$(draw)
secret databases << END
postgres=$(draw)
prefect=${PREFECT_DATABASE_PASSWORD:-$(draw)}
mlflow=${MLFLOW_DATABASE_PASSWORD:-$(draw)}
END
secret prefect << END
login=cloze:$(draw)
END
secret mlflow << END
password=$mlflow
session-key=$(draw)
END
if [ "${STORE:-inside}" = aws ]; then # pods use IAM roles instead of keys
    secret job << END
MLFLOW_TRACKING_PASSWORD=$mlflow
END
else
    secret store << END
key-id=$key_id
key=$key
identities={"identities": [{"name": "cloze", "credentials": [{"accessKey": "$key_id", "secretKey": "$key"}], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
END
    secret job << END
MLFLOW_TRACKING_PASSWORD=$mlflow
AWS_ACCESS_KEY_ID=$key_id
AWS_SECRET_ACCESS_KEY=$key
END
fi
