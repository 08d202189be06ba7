"""The supervisor of one attempt: worker pools, scaling, failure judgement and draining."""
