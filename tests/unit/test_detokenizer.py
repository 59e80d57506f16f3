"""Incremental detokenising equals decoding everything at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from worker.detokenizer import ByteLevelDetokenizer, Vocabulary, WindowDetokenizer
from worker.engines.fake import EOS, fake_tokenizer

PIECES = ["\ufffd", " the", "日本", "<tool>"]


@pytest.fixture(scope="module")
def byte_level() -> Vocabulary:
    return Vocabulary(fake_tokenizer(PIECES).to_str())


@pytest.fixture(scope="module")
def sentencepiece() -> Vocabulary:
    """Like Llama 2's: word pieces with a leading ▁, byte tokens for the rest, the first space stripped."""
    pieces = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁Paris", "▁is", "▁", "a", "é", "\ufffd"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return Vocabulary(tokenizer.to_str())


def pieces(vocabulary: Vocabulary, ids: list[int], prompt: tuple[int, ...] = ()) -> list[str]:
    detokenizer = vocabulary.detokenizer(prompt)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


def test_the_kind_follows_the_tokenizer(byte_level: Vocabulary, sentencepiece: Vocabulary) -> None:
    assert isinstance(byte_level.detokenizer(()), ByteLevelDetokenizer)
    assert isinstance(sentencepiece.detokenizer(()), WindowDetokenizer)


@given(st.lists(st.integers(0, 256 + len(PIECES)), max_size=30))
def test_byte_level_pieces_join_to_the_decoding_of_all(ids: list[int]) -> None:
    vocabulary = Vocabulary(fake_tokenizer(PIECES).to_str())
    decoded = b"".join(vocabulary.token_bytes(token) for token in ids).decode("utf-8", "replace")
    assert "".join(pieces(vocabulary, ids)) == decoded
    if all(token <= EOS for token in ids):  # tokenizers decodes around added tokens in parts
        assert decoded == vocabulary.tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ["a🙂b", "👨‍👩‍👧", "日本語", "e\u0301x", " lead", "a  b", "don 't ."])
def test_characters_over_several_tokens_arrive_whole(byte_level: Vocabulary, text: str) -> None:
    sent = pieces(byte_level, list(text.encode()))
    assert "".join(sent) == text
    assert "\ufffd" not in "".join(sent)
    assert [piece for piece in sent if piece] == list(text)


def test_a_real_replacement_character_is_not_held(byte_level: Vocabulary) -> None:
    token = byte_level.tokenizer.token_to_id("\ufffd")
    assert pieces(byte_level, [97, token, token, 98]) == ["a", "\ufffd", "\ufffd", "b", ""]


def test_a_stray_byte_delays_nothing(byte_level: Vocabulary) -> None:
    assert pieces(byte_level, [0x80, *b" b c"]) == ["\ufffd", " ", "b", " ", "c", ""]


def test_an_incomplete_character_is_sent_at_the_end(byte_level: Vocabulary) -> None:
    assert pieces(byte_level, list("🙂".encode())[:3]) == ["", "", "", "\ufffd"]


def test_special_tokens_have_no_text(byte_level: Vocabulary) -> None:
    assert pieces(byte_level, [97, EOS, 98]) == ["a", "", "b", ""]


def test_ids_outside_the_tokenizer_have_no_text(byte_level: Vocabulary) -> None:
    assert pieces(byte_level, [97, 99_999, 98]) == ["a", "", "b", ""]


def test_a_leading_space_follows_the_prompt(sentencepiece: Vocabulary) -> None:
    paris, is_ = (sentencepiece.tokenizer.token_to_id(piece) for piece in ("▁Paris", "▁is"))
    assert "".join(pieces(sentencepiece, [is_, paris], prompt=(paris,))) == " is Paris"


def test_byte_tokens_of_a_character_arrive_whole(sentencepiece: Vocabulary) -> None:
    ids = [sentencepiece.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🙂日".encode()]
    a = sentencepiece.tokenizer.token_to_id("a")
    assert [piece for piece in pieces(sentencepiece, [a, *ids, a], prompt=(a,)) if piece] == ["a", "🙂", "日", "a"]


def test_broken_byte_tokens_delay_nothing(sentencepiece: Vocabulary) -> None:
    a, stray = sentencepiece.tokenizer.token_to_id("a"), sentencepiece.tokenizer.token_to_id("<0x80>")
    assert pieces(sentencepiece, [stray, a, a], prompt=(a,)) == ["\ufffd", "a", "a", ""]


def test_a_long_text_in_sentencepiece(sentencepiece: Vocabulary) -> None:
    names = ("▁Paris", "▁is", "a", "é", "\ufffd", "▁", "<0xE2>", "<0x82>", "<0xAC>", "a") * 20
    ids = [sentencepiece.tokenizer.token_to_id(name) for name in names]
    first = sentencepiece.tokenizer.decode([ids[0]])
    whole = sentencepiece.tokenizer.decode([ids[0], *ids])
    assert "".join(pieces(sentencepiece, ids, prompt=(ids[0],))) == whole.removeprefix(first)
