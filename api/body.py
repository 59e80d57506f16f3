"""Request bodies: JSON whatever the Content-Type says (a plain `curl -d` sends that of a form)."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from api.errors import first_problem

ModelT = TypeVar("ModelT", bound=BaseModel)


def json_body(model: type[ModelT]) -> Callable[[Request], Awaitable[ModelT]]:
    """A dependency that reads the body as `model`. Raises InvalidRequestError. The parser is pydantic's: it refuses
    lone surrogates, invalid UTF-8 and endless nesting, where Python's fails later or elsewhere."""

    async def parse(request: Request) -> ModelT:
        try:
            return model.model_validate_json(await request.body())
        except ValidationError as error:
            raise first_problem(error) from None

    return parse


def body_docs(model: type[BaseModel]) -> dict[str, Any]:
    """The `openapi_extra` of a route that uses `json_body`."""
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}
