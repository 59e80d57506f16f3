"""Bodies: what is accepted, and the field that an error names."""

import json
from typing import Any

import pytest
from fastapi import Request

from api.body import json_body
from api.schemas.generate import GenerateRequest, GenerateStreamRequest
from shared.errors import InvalidRequestError


async def parse(body: bytes, model: Any = GenerateRequest) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return await json_body(model)(Request({"type": "http"}, receive))


async def error_of(body: bytes, model: Any = GenerateRequest) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        (await parse(body, model)).texts(4)
    return caught.value


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [0, -1, 1.5, True, "5", [1]]),
        ("temperature", [-1, 2.1, True, "1"]),
        ("top_p", [-0.1, 1.1, False, "1"]),
        ("top_k", [-2, 1.5, True]),
        ("seed", [2**63, -(2**63) - 1, 1.5, True, "1"]),
        ("stop", ["", [""], ["", "x"], ["x"] * 17, 5, [5], "x" * 1025, {}]),
        ("ignore_eos", [1, "true"]),
        ("model", ["", 5, []]),
        ("prompt", ["", 5, ["x"], [1], True]),
        ("prompts", ["x", [], [""], ["a", ""], [5], [[1]]]),
        ("no_such_field", [1]),
        ("stream", [True]),
    ],
)
async def test_a_wrong_value_is_refused_by_the_name_of_its_field(field: str, values: list[Any]) -> None:
    for value in values:
        body = {"prompt": "x"} if field != "prompts" else {}
        error = await error_of(json.dumps(body | {field: value}).encode())
        assert error.param == field, value
        assert str(error).startswith(field)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [1, 10**9, None]),
        ("temperature", [0, 1e-45, 1, 2, None]),
        ("top_p", [0, 1e-9, 1, None]),
        ("top_k", [-1, 0, 1, 10**30, None]),
        ("seed", [0, -(2**63), 2**63 - 1, None]),
        ("stop", ["x", ["x"] * 16, [], None, "。終", " "]),
        ("ignore_eos", [True, False, None]),
        ("model", ["m", None]),
    ],
)
async def test_the_limits_themselves_are_accepted(field: str, values: list[Any]) -> None:
    for value in values:
        assert (await parse(json.dumps({"prompt": "x", field: value}).encode())).texts(4) == ["x"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x", "prompts": ["x"]}, "prompts"),
        ({"prompts": ["x"] * 5}, "prompts"),
    ],
)
async def test_exactly_one_of_prompt_and_prompts_is_needed(body: dict[str, Any], param: str) -> None:
    assert (await error_of(json.dumps(body).encode())).param == param


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 99999]
)
async def test_what_is_no_json_object_is_refused_without_python_words(body: bytes) -> None:
    for model in (GenerateRequest, GenerateStreamRequest):
        error = await error_of(body, model)
        assert error.param is None
        assert "Error" not in str(error)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
async def test_numbers_that_are_none_are_refused(number: bytes) -> None:
    for field in (b"temperature", b"top_p"):
        error = await error_of(b'{"prompt": "x", "%s": %s}' % (field, number))
        assert error.param == field.decode()


async def test_a_stop_is_a_string_or_a_list() -> None:
    assert (await parse(b'{"prompt": "x", "stop": "a"}')).stop == ["a"]
    assert (await parse(b'{"prompt": "x", "stop": ["a", "b"]}')).stop == ["a", "b"]


async def test_the_name_of_an_unknown_field_is_not_sent_back_at_any_length() -> None:
    error = await error_of(json.dumps({"prompt": "x", "y" * 10_000: 1}).encode())
    assert len(str(error)) < 200
