"""Frames, byte for byte."""

from dataclasses import replace

import pytest
from httpx_sse._decoders import SSELineDecoder

from api.sse import KeepAlive, frame
from shared.messages import Event

TOKENS = Event("j", 3, "1:x", "token", (7, 8), "ab", 5, "h")
DATA = {
    "finish_reason": "stop",
    "error": None,
    "usage": {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6},
    "timing": {"queued_ms": 1, "first_token_ms": 2, "total_ms": 3},
}


def test_a_token_frame() -> None:
    assert frame(TOKENS, "m") == (
        b'id: 3\nevent: token\ndata: {"id":"j","index":3,"token":7,"tokens":[7,8],"text":"ab"}\n\n'
    )


def test_a_done_frame() -> None:
    assert frame(Event("j", 4, "1:x", "finished", (), "", 5, "h", DATA), "m") == (
        b'id: 4\nevent: done\ndata: {"id":"j","model":"m","finish_reason":"stop",'
        b'"usage":{"prompt_tokens":1,"completion_tokens":5,"total_tokens":6},'
        b'"timing":{"queued_ms":1,"first_token_ms":2,"total_ms":3}}\n\n'
    )


def test_an_error_frame_that_no_log_holds_has_no_id() -> None:
    error = {"error": {"code": "job_lost", "message": "gone"}}
    assert frame(Event("j", 0, "", "failed", (), "", 5, "h", error), "m") == (
        b'event: error\ndata: {"id":"j","error":{"message":"gone","type":"server_error","param":null,'
        b'"code":"job_lost"}}\n\n'
    )


@pytest.mark.parametrize("error", [None, {}, [], "text", {"code": None}])
def test_an_end_without_a_reason_still_has_a_code_and_a_message(error: object) -> None:
    text = frame(Event("j", 1, "", "failed", (), "", 0, "", {"error": error}), "m").decode()  # type: ignore[dict-item]
    assert '"code":"engine_error"' in text
    assert "ended as failed" in text


@pytest.mark.parametrize("character", ["\r", "\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"])
def test_no_line_end_of_any_kind_splits_the_data(character: str) -> None:
    text = frame(replace(TOKENS, text=character), "m").decode()
    assert len(text.splitlines()) == 4
    assert len(SSELineDecoder().decode(text)) == 4


def test_a_comment_is_one_line() -> None:
    assert KeepAlive().encode() == b": keep-alive\n"
