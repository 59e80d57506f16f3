"""Token ids to text, one token at a time, exactly: the pieces joined are the decoding of all tokens, and a piece is
held back only while it ends inside a character."""

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from tokenizers import Tokenizer

PRIME = 6  # prompt tokens that give the first output token its context (a leading space, say)
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer(Protocol):
    """The text of one row."""

    def push(self, token_id: int) -> str:
        """The text that this token makes certain; '' while a character is incomplete."""
        ...

    def flush(self) -> str:
        """What is still held, at the end: an incomplete character reads U+FFFD."""
        ...


class Vocabulary:
    """A tokenizer file, read once for all rows."""

    def __init__(self, tokenizer_json: str) -> None:
        self.tokenizer: Tokenizer = Tokenizer.from_str(tokenizer_json)
        self._is_byte_level = _is_byte_level(json.loads(tokenizer_json).get("decoder"))
        self._bytes: dict[int, bytes] = {}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that have no text, such as EOS."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def detokenizer(self, prompt_token_ids: Sequence[int]) -> Detokenizer:
        """For a new row that continues this prompt."""
        if self._is_byte_level:
            return ByteLevelDetokenizer(self)
        return WindowDetokenizer(self, prompt_token_ids[-PRIME:])

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token of a byte-level vocabulary stands for."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._decode_token(token_id)
        return found

    def _decode_token(self, token_id: int) -> bytes:
        token = self.tokenizer.id_to_token(token_id)
        if token is None or token_id in self.special_ids:
            return b""
        try:
            return bytes(BYTE_OF_CHAR[char] for char in token)
        except KeyError:  # an added token, written as it reads
            return token.encode()


class ByteLevelDetokenizer:
    """For vocabularies whose tokens are byte strings (GPT-2, OPT, Llama 3, Qwen, SmolLM): plain UTF-8 decoding."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._vocabulary.token_bytes(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For all other vocabularies (SentencePiece, WordPiece): decode a short window and send what is new in it."""

    def __init__(self, vocabulary: Vocabulary, context: Iterable[int]) -> None:
        self._vocabulary = vocabulary
        self._window = list(context)
        self._num_sent = len(self._window)  # tokens of the window whose text was sent

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        if self._ends_inside_character():
            return ""
        return self._advance()

    def flush(self) -> str:
        return self._advance()

    def _advance(self) -> str:
        decode = self._vocabulary.tokenizer.decode
        sent = decode(self._window[: self._num_sent], skip_special_tokens=True)
        text = decode(self._window, skip_special_tokens=True)
        if len(self._window) - self._num_sent and len(text) > len(sent):
            self._window = self._window[self._num_sent :]
        self._num_sent = len(self._window)
        return text[len(sent) :]

    def _ends_inside_character(self) -> bool:
        tail = bytearray()
        for token_id in reversed(self._window[self._num_sent :]):
            match = BYTE_TOKEN.fullmatch(self._vocabulary.tokenizer.id_to_token(token_id) or "")
            if match is None:
                break
            tail.insert(0, int(match[1], 16))
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(bytes(tail))
        return decoder.getstate()[0] != b""


def _is_byte_level(decoder: dict[str, object] | None) -> bool:
    match decoder:
        case {"type": "ByteLevel"}:
            return True
        case {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}:
            return True
    return False


def _byte_of_char() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the other 68 for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_of_char()
