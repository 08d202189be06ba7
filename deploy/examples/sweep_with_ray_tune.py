"""A sweep by Ray Tune over jobs of a service: each trial is a job, a bad one is cancelled."""

import argparse
from functools import partial

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from accordion_client import connect


def train(config: dict, epochs: int) -> None:
    spec = {
        "name": f"tune-{tune.get_context().get_trial_id()}",
        "labels": {"sweep": "tune"},
        "task": {"name": "digits-mlp"},
        "training": {"epochs": epochs, "optimizer": {"name": "sgd", "lr": config["lr"]}},
        "compression": {"method": "powersgd", "low": {"rank": 4}, "high": {"rank": config["rank"]}},
    }
    with connect() as client:
        job = client.submit(spec)
        try:
            for event in client.events(job.id):
                if event.type == "epoch" and event.data["loss"] is not None:
                    tune.report({"loss": event.data["loss"], "epoch": event.data["epoch"] + 1})
        except SystemExit:  # Tune has stopped this trial
            client.cancel(job.id)
            raise
        done = client.job(job.id)
        if done.status != "SUCCEEDED":
            raise RuntimeError(f"{done.name} is {done.status}: {done.message}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--trials", type=int, default=6)
    options = parser.parse_args()
    tuner = tune.Tuner(
        # A trial only waits for its job, whose workers reserve the processors.
        tune.with_resources(partial(train, epochs=options.epochs), {"cpu": 0.1}),
        param_space={"lr": tune.loguniform(0.02, 0.5), "rank": tune.choice([1, 2, 4])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=options.trials,
            max_concurrent_trials=2,
            scheduler=ASHAScheduler(time_attr="epoch", max_t=options.epochs, grace_period=2),
        ),
    )
    print(tuner.fit().get_best_result().config)


if __name__ == "__main__":
    main()
