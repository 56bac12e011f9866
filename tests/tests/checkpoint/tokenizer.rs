//! Text to ids and back, and what is said when that cannot be.

use assay_reference::checkpoint::Tokenizer;
use assay_reference::checkpoint::tokenizer::check_ids;
use serde_json::json;
use tempfile::TempDir;

use crate::support::assert_says;

/// A byte-level tokenizer with merges for `ab`, one special token, and a truncation left over from
/// training.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut vocab = serde_json::Map::new();
    // The byte-level alphabet: printable ASCII as itself, a space as Ġ, the bytes of é as Ã and ©.
    let letters = (b'!'..=b'~').map(char::from).chain(['Ġ', 'Ã', '©']);
    for letter in letters {
        vocab.insert(letter.to_string(), json!(vocab.len()));
    }
    vocab.insert("ab".into(), json!(vocab.len()));
    let special = vocab.len();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 },
        "padding": null,
        "added_tokens": [{
            "id": special, "content": "<|end|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }],
        "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "vocab": vocab, "merges": ["a b"],
        },
    });
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir
}

#[test]
fn text_round_trips_whole_with_special_tokens() {
    let dir = folder();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    let text = "abba cab é<|end|>";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(ids.len(), 10, "the file's truncation to 3 tokens is not applied");
    assert_eq!(tokenizer.token(*ids.last().unwrap()).as_deref(), Some("<|end|>"));
    assert_eq!(tokenizer.token(ids[0]).as_deref(), Some("ab"));
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    assert_eq!(tokenizer.len(), 99);
    let half = ids[ids.len() - 3];
    assert_eq!(tokenizer.decode(&[half]).unwrap(), "\u{fffd}", "half of a character");
}

#[test]
fn errors_say_what_to_do() {
    let dir = folder();
    let tokenizer = Tokenizer::open(dir.path()).unwrap();
    assert_says(&tokenizer.encode("").unwrap_err().to_string(), &["prompt is empty"]);
    let beyond = tokenizer.decode(&[0, 4000]).unwrap_err().to_string();
    assert_says(&beyond, &["tokenizer.json", "token 1 has id 4000", "knows 99 tokens"]);

    let empty = tempfile::tempdir().unwrap();
    let missing = Tokenizer::open(empty.path()).unwrap_err().to_string();
    assert_says(&missing, &["tokenizer.json", "there is no tokenizer", "--ids"]);
    for broken in ["", "{}", "[]", "{\"model\": 3}", "\u{0}"] {
        std::fs::write(empty.path().join("tokenizer.json"), broken).unwrap();
        let text = Tokenizer::open(empty.path()).unwrap_err().to_string();
        assert_says(&text, &["tokenizer.json", "is not a tokenizer that can be read"]);
    }
}

#[test]
fn ids_are_held_against_the_embedding() {
    check_ids(&[0, 31], 32).unwrap();
    assert_says(&check_ids(&[], 32).unwrap_err().to_string(), &["no token ids"]);
    let text = check_ids(&[0, 5, 32], 32).unwrap_err().to_string();
    assert_says(&text, &["token 2 has id 32", "32 rows", "0 to 31"]);
}
