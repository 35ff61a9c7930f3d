"""The routes of the viewer: the page, its files, and its requests."""

from asyncio import get_running_loop
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from qkv.errors import OutOfMemoryError, QkvError
from qkv.http.messages import json_of, json_response, on_bug, on_http_error
from qkv.view.answers.answer import Answer, Numbers
from qkv.view.answers.requests import RequestHandler

_KINDS = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}


def application(handler: RequestHandler, page: str, files: Mapping[str, str], workers: ThreadPoolExecutor) -> Starlette:
    """The viewer as an ASGI application; it trusts every request, so it must be behind a `Guard`.

    Args:
        handler: answers the requests.
        page: the page that makes them.
        files: the files the page loads, by name; nothing else is served, and no name reaches the file system.
        workers: the threads that compute.
    """

    async def root(request: Request) -> Response:
        return Response(page, media_type="text/html")

    async def static(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        return Response(files[name], headers={"content-type": _KINDS[name.rsplit(".", 1)[-1]]})

    async def api(request: Request) -> Response:
        question = handler.questions.get(request.path_params["name"])
        if question is None:
            raise HTTPException(404)
        if request.method.replace("HEAD", "GET") != question.method:
            raise HTTPException(405, headers={"allow": question.method})
        body = await json_of(request) if question.method == "POST" else None
        name, parameters = request.path_params["name"], request.scope["query_string"].decode("ascii", "replace")
        try:
            answer = await get_running_loop().run_in_executor(workers, handler.ask, name, parameters, body)
        except QkvError as error:
            raise HTTPException(503 if isinstance(error, OutOfMemoryError) else 400, str(error)) from error
        return _response(answer)

    app = Starlette(
        routes=[
            Route("/", root),
            Route("/static/{name}", static),
            Route("/api/{name}", api, methods=["GET", "POST"]),
        ],
        exception_handlers={HTTPException: on_http_error, Exception: on_bug},
    )
    app.router.redirect_slashes = False  # a redirect would reveal an address without the token
    return app


def _response(answer: Answer) -> Response:
    if isinstance(answer, Numbers):
        headers = {
            "x-qkv-shape": f"{answer.rows},{answer.columns}",
            "x-qkv-state": answer.state,
            "x-qkv-range": f"{answer.low!r},{answer.high!r}",
        }
        return Response(answer.content, headers=headers, media_type="application/octet-stream")
    return json_response(answer.content)
