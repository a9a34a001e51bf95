//! Audio from WAV files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::resample::resampled;
use crate::error::{Error, ErrorKind, Result, fail};

/// Most bytes of a file: about three hours of stereo at 48,000 samples per second and 16 bits.
const MAX_BYTES: u64 = 2 << 30;

/// Samples per second that a file may have.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;

/// Formats of samples in a WAV file.
const INTEGERS: u16 = 1;
const FLOATS: u16 = 3;
const EXTENSIBLE: u16 = 0xfffe;

/// Audio with one channel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Audio {
    /// Samples per second.
    pub rate: u32,
    /// Samples from −1 to 1.
    pub samples: Vec<f32>,
}

/// Fields of the `fmt ` chunk.
#[derive(Clone, Copy)]
struct Format {
    kind: u16,
    channels: usize,
    rate: u32,
    bits: u16,
}

fn invalid(what: &str) -> Error {
    Error::of_kind(ErrorKind::Format, format!("a WAV file {what}"))
}

impl Audio {
    /// Takes samples from −1 to 1, which must be finite.
    pub fn of_samples(rate: u32, samples: Vec<f32>) -> Result<Audio> {
        check_rate("audio", rate)?;
        if samples.iter().any(|sample| !sample.is_finite()) {
            fail!(Argument, "audio must have finite samples");
        }
        Ok(Audio { rate, samples })
    }

    /// Reads a WAV file.
    pub fn read(path: impl AsRef<Path>) -> Result<Audio> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| Error::io("read", path, error))?;
        let mut bytes = Vec::new();
        let mut limited = file.take(MAX_BYTES + 1);
        limited.read_to_end(&mut bytes).map_err(|error| Error::io("read", path, error))?;
        if bytes.len() as u64 > MAX_BYTES {
            fail!(Format, "{} must have at most {MAX_BYTES} bytes", path.display());
        }
        Audio::of_wav(&bytes).map_err(|error| error.within(path))
    }

    /// Reads the content of a WAV file: integers of 8, 16, 24 or 32 bits, or floats of 32 or 64 bits. The mean of all channels
    /// is taken.
    pub fn of_wav(bytes: &[u8]) -> Result<Audio> {
        let mut chunks = match bytes {
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', rest @ ..] => rest,
            _ => {
                let error = Error::of_kind(ErrorKind::Unsupported, "the audio must be a WAV file");
                return Err(error.with_hint(
                    "convert it first, for example with `ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav`",
                ));
            }
        };
        let mut format = None;
        while let Some((header, rest)) = chunks.split_first_chunk::<8>() {
            let [a, b, c, d, length @ ..] = *header;
            // Programs that write to a pipe state no length.
            let length = (u32::from_le_bytes(length) as usize).min(rest.len());
            let (chunk, after) = rest.split_at(length);
            match &[a, b, c, d] {
                b"fmt " => format = Some(format_of(chunk)?),
                b"data" => {
                    let Some(format) = format else {
                        return Err(invalid("must state its format before its samples"));
                    };
                    return Ok(Audio { rate: format.rate, samples: samples(format, chunk)? });
                }
                _ => {}
            }
            // Chunks start at even bytes.
            chunks = after.get(length % 2..).unwrap_or_default();
        }
        Err(invalid("must have samples"))
    }

    /// The audio with another number of samples per second.
    pub fn resampled(self, rate: u32) -> Audio {
        match self.rate == rate {
            true => self,
            false => Audio { rate, samples: resampled(&self.samples, self.rate, rate) },
        }
    }

    /// Its length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.rate.max(1))
    }
}

fn format_of(chunk: &[u8]) -> Result<Format> {
    let Some((head, rest)) = chunk.split_first_chunk::<16>() else {
        return Err(invalid("must have a format chunk of at least 16 bytes"));
    };
    let short = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let mut kind = short(0);
    // The kind is the start of an identifier after the size and other fields.
    if kind == EXTENSIBLE {
        kind = match rest.get(8..10) {
            Some(&[low, high]) => u16::from_le_bytes([low, high]),
            _ => return Err(invalid("must have an extensible format chunk of 40 bytes")),
        };
    }
    let rate = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    let format = Format { kind, channels: usize::from(short(2)), rate, bits: short(14) };
    if format.channels == 0 {
        return Err(invalid("must have at least one channel"));
    }
    check_rate("a WAV file", rate)?;
    Ok(format)
}

fn check_rate(what: &str, rate: u32) -> Result<()> {
    if !RATES.contains(&rate) {
        let (least, most) = (RATES.start(), RATES.end());
        fail!(Format, "{what} must have from {least} to {most} samples per second, got {rate}");
    }
    Ok(())
}

fn samples(format: Format, data: &[u8]) -> Result<Vec<f32>> {
    let integer = |bytes: &[u8]| {
        let mut all = [0; 4];
        all[4 - bytes.len()..].copy_from_slice(bytes);
        i32::from_le_bytes(all) as f32 / 2f32.powi(31)
    };
    let Format { kind, channels, bits, .. } = format;
    let read: &dyn Fn(&[u8]) -> f32 = match (kind, bits) {
        (INTEGERS, 8) => &|bytes| (f32::from(bytes[0]) - 128.0) / 128.0,
        (INTEGERS, 16 | 24 | 32) => &integer,
        (FLOATS, 32) => &|bytes| bytes.try_into().map_or(0.0, f32::from_le_bytes),
        (FLOATS, 64) => &|bytes| bytes.try_into().map_or(0.0, f64::from_le_bytes) as f32,
        _ => {
            let message = format!("samples of type {kind} with {bits} bits are not supported");
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint(
                "supported: integers (type 1) of 8, 16, 24 or 32 bits, floats (type 3) of 32 or 64 bits",
            ));
        }
    };
    let width = usize::from(bits) / 8;
    let sample = |frame: &[u8]| match channels {
        1 => read(frame),
        _ => frame.chunks_exact(width).map(read).sum::<f32>() / channels as f32,
    };
    let samples: Vec<f32> = data.chunks_exact(width * channels).map(sample).collect();
    if samples.iter().any(|sample| !sample.is_finite()) {
        return Err(invalid("must have finite samples"));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wav(kind: u16, channels: u16, bits: u16, data: &[u8]) -> Vec<u8> {
        let mut format = [kind.to_le_bytes(), channels.to_le_bytes()].concat();
        format.extend(16_000u32.to_le_bytes());
        format.extend([0; 6]);
        format.extend(bits.to_le_bytes());
        let mut bytes = b"RIFF\0\0\0\0WAVE".to_vec();
        for (name, chunk) in [(b"fmt ", &format[..]), (b"note", b"odd"), (b"data", data)] {
            bytes.extend(name);
            bytes.extend((chunk.len() as u32).to_le_bytes());
            bytes.extend(chunk);
            bytes.extend(std::iter::repeat_n(0, chunk.len() % 2));
        }
        bytes
    }

    fn samples_of(kind: u16, channels: u16, bits: u16, data: &[u8]) -> Vec<f32> {
        Audio::of_wav(&wav(kind, channels, bits, data)).expect("sound").samples
    }

    #[test]
    fn decodes_all_wav_sample_formats_equally() {
        let expected = [0.5, -1.0, 0.25];
        let integers = |bytes: usize| -> Vec<u8> {
            let all = expected.iter().map(|it| (it * 2f64.powi(31)) as i32);
            all.flat_map(|it| it.to_le_bytes()[4 - bytes..].to_vec()).collect()
        };
        assert_eq!(samples_of(1, 1, 8, &[192, 0, 160]), expected.map(|it| it as f32));
        for bytes in [2, 3, 4] {
            let found = samples_of(1, 1, bytes as u16 * 8, &integers(bytes));
            assert_eq!(found, expected.map(|it| it as f32));
        }
        let floats: Vec<u8> = expected.iter().flat_map(|it| (*it as f32).to_le_bytes()).collect();
        assert_eq!(samples_of(3, 1, 32, &floats), expected.map(|it| it as f32));
        let doubles: Vec<u8> = expected.iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(samples_of(3, 1, 64, &doubles), expected.map(|it| it as f32));
        // Two channels are averaged, and the incomplete last frame is dropped.
        assert_eq!(samples_of(3, 2, 32, &floats), [-0.25]);
    }

    #[test]
    fn rejects_invalid_wav_files() {
        let message = |bytes: &[u8]| Audio::of_wav(bytes).expect_err("refused").to_string();
        assert_eq!(message(b"ID3"), "the audio must be a WAV file");
        assert_eq!(message(b"RIFF\0\0\0\0WAVE"), "a WAV file must have samples");
        assert!(message(b"RIFF\0\0\0\0WAVEdata\0\0\0\0").contains("before its samples"));
        assert!(message(&wav(1, 0, 16, &[])).contains("one channel"));
        assert!(message(&wav(7, 1, 8, &[0])).contains("type 7 with 8 bits"));
        assert!(message(&wav(3, 1, 32, &f32::NAN.to_le_bytes())).contains("finite"));
        let mut slow = wav(1, 1, 16, &[0, 0]);
        slow[24..28].copy_from_slice(&7u32.to_le_bytes());
        assert!(message(&slow).contains("got 7"));
    }
}
