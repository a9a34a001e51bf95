//! A small speech model in files: transcription, conversion and errors.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use coremill_graph::Device;
use coremill_llm::{
    Audio, ErrorKind, LanguageModel, ModelKind, SpeechModel, SpeechOptions, Task,
    TranscribeOptions, Transcriber, Transcription,
};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/tinywhisper")
}

fn audio() -> Audio {
    Audio::read(tiny().join("audio.wav")).expect("audio").resampled(16_000)
}

fn open(path: &Path) -> Transcriber {
    Transcriber::open(path, Device::Host, 1, &SpeechOptions::default()).expect("opens")
}

fn transcribe(model: &mut Transcriber, options: &TranscribeOptions) -> Transcription {
    let mut shown = 0;
    let found = model.transcribe(&audio(), options, &mut |_| shown += 1).expect("runs");
    assert_eq!(shown, found.segments.len());
    found
}

#[test]
fn converted_model_transcribes_like_its_source() {
    let directory = tempfile::tempdir().expect("a directory");
    let model = SpeechModel::open(tiny()).expect("opens");
    let companions = model.companions().expect("a tokenizer");
    let options = SpeechOptions::default();
    let mut stages = Vec::new();
    let mut stage = |text: &str| stages.push(text.to_owned());
    let saved = model.save(directory.path(), &companions, &options, false, &mut stage);
    assert_eq!((saved.expect("saved").files.len(), stages.len()), (5, 2));
    assert_eq!(ModelKind::of(directory.path()), ModelKind::Speech);
    let [mut written, mut read] = [directory.path(), &tiny()].map(open);
    let mut timed = TranscribeOptions::default();
    timed.timestamps = true;
    timed.language = Some("de".to_owned());
    let mut translated = TranscribeOptions::default();
    translated.task = Task::Translate;
    let mut texts = Vec::new();
    for options in [TranscribeOptions::default(), timed, translated] {
        let [found, expected] = [&mut written, &mut read].map(|it| transcribe(it, &options));
        assert_eq!(found.segments, expected.segments);
        assert_eq!((found.language, found.seconds), (expected.language, 0.5));
        texts.push(found.text);
    }
    assert_ne!(texts[0], texts[2]);
    // Files of another model are not overwritten.
    let other = [("generation_config.json", "{}".to_owned())];
    let error = model.save(directory.path(), &other, &options, false, &mut |_| ());
    assert!(error.expect_err("refused").to_string().contains("belongs to another model"));
}

#[test]
fn cancelled_transcription_returns_no_segments() {
    let mut options = TranscribeOptions::default();
    options.cancel = Some(Arc::new(AtomicBool::new(true)));
    let found = transcribe(&mut open(&tiny()), &options);
    assert!(found.segments.is_empty() && found.text.is_empty());
}

#[test]
fn rejects_invalid_audio_languages_and_tokens() {
    let mut model = open(&tiny());
    let refused =
        |model: &mut Transcriber, audio: &Audio, change: &dyn Fn(&mut TranscribeOptions)| {
            let mut options = TranscribeOptions::default();
            change(&mut options);
            model.transcribe(audio, &options, &mut |_| ()).expect_err("refused")
        };
    let slow = Audio::of_samples(8_000, vec![0.0; 100]).expect("sound");
    assert!(Audio::of_samples(7, Vec::new()).is_err());
    assert!(Audio::of_samples(8_000, vec![f32::NAN]).is_err());
    let error = refused(&mut model, &slow, &|_| ());
    assert_eq!(error.to_string(), "the audio must have 16000 samples per second, got 8000");
    let french = |options: &mut TranscribeOptions| options.language = Some("fr".to_owned());
    let error = refused(&mut model, &audio(), &french);
    assert_eq!(error.to_string(), "the model does not support the language `fr`");
    assert_eq!(error.hint(), Some("expected de, en"));
    assert_eq!(model.read(99, 1).expect_err("refused").kind(), ErrorKind::Argument);
    assert!(model.read(1, 12).expect_err("refused").to_string().contains("at most 12 tokens"));
    let error = LanguageModel::open(tiny()).expect_err("refused");
    assert!(error.to_string().ends_with("a family of speech models, which do not accept text"));
    let error = SpeechModel::package_paths(Path::new("whisper.mlpackage")).expect_err("refused");
    assert_eq!(error.hint(), Some("write to a directory"));
}
