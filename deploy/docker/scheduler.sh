#!/bin/sh
# A driver needs a Ray node on its own host: this one joins the cluster with nothing to give, then starts the scheduler.
# Its label keeps supervisors away, since they shall outlive the scheduler; what Ray starts here sees no database.
set -eu
env -u ACCORDION_DATABASE_URL \
  ray start --address="$RAY_ADDRESS" --num-cpus=0 --num-gpus=0 --labels accordion-node=scheduler \
  --object-store-memory=100000000 --disable-usage-stats
exec accordion scheduler
