"""Write the fixtures of `test_families.py`: a small model of each family, with what `transformers` computes with it.

Run where transformers and sentencepiece are installed: python -m tests.hub.make_families
"""

import io
import json
from pathlib import Path

import safetensors.torch
import tokenizers
import torch
from tests.hub import theirs
from tests.hub.published import CASES, FILLERS, LABELERS, VOCABULARY, inputs
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

FOLDER = Path(__file__).parent / "families"


def main() -> None:
    import transformers

    given = inputs()
    for name in CASES:
        model, folder = theirs.make(name), FOLDER / name
        theirs.write(model, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        expected = {"logits": theirs.logits(model, name, given)}
        safetensors.torch.save_file(expected, folder / "expected.safetensors")
        if name not in (*FILLERS, *LABELERS):
            ids = {f"{beam}": theirs.continued(model, name, given, beam) for beam in (1, 4)}
            text = json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, **ids})
            (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
    write_byte_pairs(FOLDER / "llama")
    for name in ("bert", "bert_texts", "bert_tokens"):
        write_word_pieces(FOLDER / name)
    write_sentencepieces(FOLDER / "marian")


TEXT = ["the cat sat on the mat", "a hat on the cat", "the mat sat on a hat", "that cat ate the hat"]
OTHER = ["le chat et la tasse", "la tasse est sale", "le chat est las", "a la salle"]


def write_byte_pairs(folder: Path) -> None:
    """A tokenizer in the form of Llama's: a begin token before each text, the end token at its place."""
    found = tokenizers.Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    marks = ["<pad>", "<s>", "<unk>", "<a>", "<b>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=marks, show_progress=False)
    found.train_from_iterator(TEXT, trainer)
    found.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    found.save(str(folder / "tokenizer.json"))


def write_word_pieces(folder: Path) -> None:
    """A tokenizer in the form of BERT's."""
    found = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=marks, show_progress=False)
    found.train_from_iterator(TEXT, trainer)
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    found.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    found.save(str(folder / "tokenizer.json"))


def write_sentencepieces(folder: Path) -> None:
    """The tokenizers of a Marian model, and the ids that its own library finds with them."""
    import sentencepiece

    pieces, readers = {}, {}
    for side, text in (("source", TEXT), ("target", OTHER)):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text * 3),
            model_writer=out,
            vocab_size=21,
            hard_vocab_limit=False,
            normalization_rule_name="identity",
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(out.getvalue())
        readers[side] = reader = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
        pieces |= dict.fromkeys(reader.id_to_piece(number) for number in range(3, reader.get_piece_size()))
    marks = {"<unk>": 1, "</s>": 5, "<pad>": VOCABULARY - 1}
    free = (number for number in range(VOCABULARY) if number not in marks.values())
    numbers = {**marks, **dict(zip(pieces, free, strict=False))}
    assert len(numbers) == len(pieces) + len(marks), "more pieces than the model has rows"
    (folder / "vocab.json").write_text(json.dumps(numbers, ensure_ascii=False) + "\n", encoding="utf-8")
    expected = {}
    for side, texts in (("source", [*TEXT, "a zebra  sat "]), ("target", [*OTHER, "le zouk"])):
        found = {text: readers[side].encode(text, out_type=str) for text in texts}
        expected[side] = {text: [numbers.get(piece, 1) for piece in row] for text, row in found.items()}
    (folder / "expected_tokens.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
