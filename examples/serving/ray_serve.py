"""A run folder on several machines, or several times on one: `serve run ray_serve:app`, with the package `ray[serve]`.

Each replica is a process with the model; Ray starts them, divides the requests, and replaces those that end. Requests
are those of `qkv serve`, at the same addresses; tokens, TLS and limits are the business of what stands in front.
"""

import os
from pathlib import Path

from ray import serve

from qkv.serving.app import Service, application
from qkv.serving.models import open_models


def build() -> object:
    """Load the models in a replica, and return the application that answers."""
    runs = [Path(run) for run in os.environ.get("QKV_RUNS", "example").split(os.pathsep)]
    return application(Service(open_models(runs, "cpu"), batch=64, waiting=256, timeout=60.0))


replicas = serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 1})
app = replicas(serve.ingress(build)()).bind()
