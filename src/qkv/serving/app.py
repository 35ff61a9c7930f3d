"""The routes of a server: models, their description, health and metrics."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from qkv.errors import OutOfMemoryError, QkvError
from qkv.http.messages import json_of, json_response, on_bug, on_http_error
from qkv.serving.models import Model, ModelRequest, read_request
from qkv.serving.request_queue import BusyError, RequestQueue
from qkv.serving.schema import PAGE, openapi
from qkv.serving.streams import Streams
from qkv.tasks.streams import finite

STREAMS = 8
"""How many answers of a model may be streamed or wait for it."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@final
class Service:
    """The models of a server with their queues and figures.

    Args:
        models: the models by name.
        batch: the most inputs that are computed together.
        waiting: the most inputs that may wait for a model.
        timeout: seconds that an answer may take.
    """

    def __init__(self, models: Mapping[str, Model], *, batch: int, waiting: int, timeout: float) -> None:
        self.models, self._timeout = models, timeout
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "qkv_requests", "Requests by model and status", ["model", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "qkv_seconds", "Seconds of an answer", ["model"], registry=self.registry, buckets=_SECONDS
        )
        inputs = Histogram(
            "qkv_batch_inputs", "Inputs computed together", ["model"], registry=self.registry, buckets=_INPUTS
        )
        waits = Gauge("qkv_waiting_inputs", "Inputs that wait", ["model"], registry=self.registry)
        self._queues = {
            name: RequestQueue(model.compute, batch, waiting, inputs.labels(name).observe)
            for name, model in models.items()
        }
        self._streams = {
            name: Streams(model.stream, STREAMS) for name, model in models.items() if model.stream is not None
        }
        for name, queue in self._queues.items():
            waits.labels(name).set_function(partial(RequestQueue.waiting_inputs, queue))

    def close(self) -> None:
        """End the threads; what waits is cancelled."""
        for streams in self._streams.values():
            streams.close()
        for queue in self._queues.values():
            queue.close()

    def health(self) -> dict[str, Any]:
        """Return the models, with their tasks and how many inputs wait for them."""
        models = {
            name: {"task": model.task, "waiting": self._queues[name].waiting_inputs()}
            for name, model in self.models.items()
        }
        return {"status": "ok", "models": models}

    async def answer(self, name: str, request: Request) -> Response:
        """Answer a request to a model, and count it."""
        start, status = time.perf_counter(), 500
        try:
            response = await self._answer(self.models[name], request)
            status = response.status_code
        except HTTPException as error:
            status = error.status_code
            raise
        else:
            return response
        finally:
            self._requests.labels(name, str(status)).inc()
            self._seconds.labels(name).observe(time.perf_counter() - start)

    async def _answer(self, model: Model, request: Request) -> Response:
        body = await json_of(request)
        try:
            parsed = read_request(body, model)
            if parsed.stream:
                return await self._stream(model, parsed)
            future = asyncio.wrap_future(self._queues[model.name].submit(parsed.inputs, parsed.settings))
            answers = await asyncio.wait_for(future, self._timeout)
        except BusyError:
            raise HTTPException(429, "Too many inputs wait for this model.", {"retry-after": "1"}) from None
        except TimeoutError:
            raise HTTPException(504, f"The answer took more than {self._timeout:g} seconds.") from None
        except QkvError as error:
            raise _refused(error) from error
        return json_response({"answers": [finite(answer) for answer in answers]})

    async def _stream(self, model: Model, parsed: ModelRequest) -> Response:
        """Stream the answer to one input as server-sent events; the last one is `[DONE]`."""
        (text,) = parsed.inputs
        pieces = self._streams[model.name].answer(text, parsed.settings, self._timeout)
        first = await anext(pieces, None)  # a request that is refused has no stream

        async def events() -> AsyncIterator[bytes]:
            async with aclosing(pieces):  # also if the client is gone
                piece = first
                try:
                    while piece is not None:
                        yield _event(json.dumps({"text": piece}))
                        piece = await anext(pieces, None)
                except TimeoutError:
                    yield _event(json.dumps({"error": f"The answer took more than {self._timeout:g} seconds."}))
            yield _event("[DONE]")

        return StreamingResponse(events(), media_type="text/event-stream")


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def _refused(error: QkvError) -> HTTPException:
    return HTTPException(503 if isinstance(error, OutOfMemoryError) else 400, str(error))


def application(service: Service) -> Starlette:
    """The server as an ASGI application; it trusts every request, so it must be behind a `ServerGuard`.

    Args:
        service: the models.
    """
    described = openapi(service.models)

    async def page(_: Request) -> Response:
        return HTMLResponse(PAGE)

    async def description(_: Request) -> Response:
        return json_response(described)

    async def health(_: Request) -> Response:
        return json_response(service.health())

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(service.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    async def answer(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in service.models:
            raise HTTPException(404)
        return await service.answer(name, request)

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/openapi.json", description),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/models/{name}", answer, methods=["POST"]),
        ],
        exception_handlers={HTTPException: on_http_error, Exception: on_bug},
    )
    app.router.redirect_slashes = False
    return app
