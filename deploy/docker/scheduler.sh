#!/bin/sh
# A driver needs a Ray node on its own host: this one joins the cluster with nothing to give, then starts the scheduler.
# Supervisors live on the head's node, so they outlive the scheduler; what Ray starts here sees neither the database nor the logins of package indexes.
set -eu
env -u ACCORDION_DATABASE_URL -u ACCORDION_PIP_INDEX_URL -u ACCORDION_PIP_EXTRA_INDEX_URL \
  ray start --address="$RAY_ADDRESS" --num-cpus=0 --num-gpus=0 \
  --object-store-memory=100000000 --disable-usage-stats
exec accordion scheduler
