#!/bin/sh
# Prints the secrets of an installation, one a line: deploy/k8s/make_secrets.sh > deploy/k8s/overlays/kind/secrets.env
# $1: URL of the database; without one, that of the PostgreSQL in overlays/kind.
set -eu
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
password=$(random)
cat <<END
admin-token=$(random)
metrics-token=$(random)
secrets-key=$(random)
auth_token=$(random)
postgres-password=$password
database-url=${1:-postgresql+psycopg://accordion:$password@postgres/accordion}
END
