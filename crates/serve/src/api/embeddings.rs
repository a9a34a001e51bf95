use coremill_io::base64;
use serde::{Deserialize, Serialize};

use super::fields::{List, Scalar};
use super::request::{count, wrong};
use super::response::ApiError;

/// Most texts of a request, as OpenAI's.
const MAX_INPUTS: usize = 2048;

const EXPECTED: &str =
    "a string, an array of strings, an array of token ids, or an array of such arrays";

/// A text to embed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// A text.
    Text(String),
    /// Token ids, with those at the ends of a text.
    Tokens(Vec<u32>),
}

/// Form of the numbers of embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Encoding {
    /// Arrays of numbers.
    Float,
    /// The bytes of little-endian fp32 numbers.
    Base64,
}

/// A request for `/v1/embeddings`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EmbeddingsRequest {
    /// The texts.
    pub inputs: Vec<Input>,
    /// Form of the numbers in the response.
    pub encoding: Encoding,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    input: List<List<Scalar>>,
    encoding_format: Scalar,
    dimensions: Scalar,
}

impl EmbeddingsRequest {
    /// Reads a request to a model whose embeddings have a number of elements.
    pub fn parse(body: &[u8], width: usize) -> Result<EmbeddingsRequest, ApiError> {
        let fields: Fields = serde_json::from_slice(body).map_err(|error| {
            ApiError::invalid(None, format!("the body is not a valid request: {error}"))
        })?;
        let encoding = match &fields.encoding_format {
            Scalar::Null => Encoding::Float,
            Scalar::Text(name) if name == "float" => Encoding::Float,
            Scalar::Text(name) if name == "base64" => Encoding::Base64,
            other => return Err(wrong("encoding_format", "`float` or `base64`", other)),
        };
        if let Some(dimensions) = count("dimensions", &fields.dimensions)?
            && dimensions != width
        {
            let message = format!(
                "`dimensions` must be {width} for this model, got {dimensions}; leave it out"
            );
            return Err(ApiError::invalid(Some("dimensions"), message));
        }
        Ok(EmbeddingsRequest { inputs: inputs(fields.input)?, encoding })
    }
}

fn inputs(field: List<List<Scalar>>) -> Result<Vec<Input>, ApiError> {
    let invalid = |message: String| ApiError::invalid(Some("input"), message);
    let items = match field {
        List::One(Scalar::Text(text)) => vec![List::One(Scalar::Text(text))],
        List::One(other) => return Err(wrong("input", EXPECTED, &other)),
        List::Many(items) => items,
    };
    if items.is_empty() {
        return Err(invalid("`input` must have at least one text".to_owned()));
    }
    // An array of numbers is one text.
    if matches!(items[0], List::One(Scalar::Int(_))) {
        let ids = items.into_iter().map(|item| match item {
            List::One(value) => id("input", &value),
            List::Many(_) => Err(wrong("input", EXPECTED, &Scalar::Array(false))),
        });
        return Ok(vec![Input::Tokens(ids.collect::<Result<_, _>>()?)]);
    }
    if items.len() > MAX_INPUTS {
        let count = items.len();
        return Err(invalid(format!("`input` must have at most {MAX_INPUTS} texts, got {count}")));
    }
    let input = |(index, item): (usize, List<Scalar>)| {
        let name = format!("input[{index}]");
        match item {
            List::One(Scalar::Text(text)) if text.is_empty() => {
                Err(invalid(format!("`{name}` is empty")))
            }
            List::One(Scalar::Text(text)) => Ok(Input::Text(text)),
            List::One(other) => Err(wrong("input", EXPECTED, &other)),
            List::Many(ids) => {
                let ids = ids.iter().map(|value| id(&name, value));
                Ok(Input::Tokens(ids.collect::<Result<_, _>>()?))
            }
        }
    };
    items.into_iter().enumerate().map(input).collect()
}

/// A token id.
fn id(field: &str, value: &Scalar) -> Result<u32, ApiError> {
    let number = match value {
        Scalar::Int(number) => u32::try_from(*number).ok(),
        _ => None,
    };
    number.ok_or_else(|| {
        let mut error = wrong(field, "an array of token ids", value);
        error.param = Some("input".to_owned());
        error
    })
}

/// Embeddings of the texts of a request.
#[derive(Clone, Copy, Debug)]
pub struct Embeddings<'e> {
    /// The name of the model.
    pub model: &'e str,
    /// A row for each text.
    pub values: &'e [Vec<f32>],
    /// Number of tokens of all texts.
    pub tokens: usize,
    /// Form of the numbers.
    pub encoding: Encoding,
}

#[derive(Serialize)]
struct Body<'e> {
    object: &'static str,
    data: Vec<Row<'e>>,
    model: &'e str,
    usage: Usage,
}

#[derive(Serialize)]
struct Row<'e> {
    object: &'static str,
    index: usize,
    embedding: Numbers<'e>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers<'e> {
    Float(&'e [f32]),
    Base64(String),
}

impl Numbers<'_> {
    fn of(values: &[f32], encoding: Encoding) -> Numbers<'_> {
        match encoding {
            Encoding::Float => Numbers::Float(values),
            Encoding::Base64 => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Numbers::Base64(base64::encode(&bytes))
            }
        }
    }
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Embeddings<'_> {
    /// The body of the response. Numbers must be finite, because JSON has no others.
    pub fn to_json(&self) -> Result<String, ApiError> {
        let Embeddings { model, values, tokens, encoding } = *self;
        if values.iter().flatten().any(|value| !value.is_finite()) {
            return Err(ApiError::new(500, "the model returned non-finite numbers"));
        }
        let mut data = Vec::with_capacity(values.len());
        for (index, values) in values.iter().enumerate() {
            let embedding = Numbers::of(values, encoding);
            data.push(Row { object: "embedding", index, embedding });
        }
        let usage = Usage { prompt_tokens: tokens, total_tokens: tokens };
        let body = Body { object: "list", data, model, usage };
        serde_json::to_string(&body).map_err(|error| ApiError::new(500, error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(body: &Value) -> Result<EmbeddingsRequest, ApiError> {
        EmbeddingsRequest::parse(body.to_string().as_bytes(), 3)
    }

    #[test]
    fn accepts_text_and_token_inputs_single_or_batched() {
        let text = |text: &str| Input::Text(text.to_owned());
        let tokens = |ids: &[u32]| Input::Tokens(ids.to_vec());
        for (input, expected) in [
            (json!("a"), vec![text("a")]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (json!([1, 2]), vec![tokens(&[1, 2])]),
            (json!([[1, 2], [3]]), vec![tokens(&[1, 2]), tokens(&[3])]),
        ] {
            let request = parse(&json!({ "input": input, "model": "any", "user": "me" }));
            let request = request.expect("sound");
            assert_eq!((request.inputs, request.encoding), (expected, Encoding::Float));
        }
        let body = json!({ "input": "a", "encoding_format": "base64", "dimensions": 3 });
        assert_eq!(parse(&body).expect("sound").encoding, Encoding::Base64);
    }

    #[test]
    fn error_param_names_invalid_field() {
        for (body, field, part) in [
            (json!({}), "input", "a string, an array of strings"),
            (json!({ "input": [] }), "input", "at least one text"),
            (json!({ "input": 3 }), "input", "got 3"),
            (json!({ "input": {} }), "input", "got an object"),
            (json!({ "input": "" }), "input", "`input[0]` is empty"),
            (json!({ "input": ["a", ""] }), "input", "`input[1]` is empty"),
            (json!({ "input": ["a", 2] }), "input", "got 2"),
            (json!({ "input": [1, "a"] }), "input", "got \"a\""),
            (json!({ "input": [1, [2]] }), "input", "got an array"),
            (
                json!({ "input": [[1], [-2]] }),
                "input",
                "`input[1]` must be an array of token ids, got -2",
            ),
            (json!({ "input": [[1.5]] }), "input", "got 1.5"),
            (json!({ "input": vec!["a"; 2049] }), "input", "at most 2048 texts, got 2049"),
            (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format", "got \"int8\""),
            (
                json!({ "input": "a", "dimensions": 2 }),
                "dimensions",
                "must be 3 for this model, got 2",
            ),
            (json!({ "input": "a", "dimensions": "x" }), "dimensions", "got \"x\""),
        ] {
            let error = parse(&body).expect_err("refused");
            assert_eq!((error.status, error.param.as_deref()), (400, Some(field)), "{error:?}");
            assert!(error.message.contains(part), "{}", error.message);
        }
        let error = EmbeddingsRequest::parse(b"[", 3).expect_err("refused");
        assert!(error.message.contains("line 1"), "{}", error.message);
    }

    #[test]
    fn non_finite_embeddings_return_status_500() {
        for (value, status) in [(1.5, None), (f32::NAN, Some(500)), (f32::INFINITY, Some(500))] {
            let values = [vec![value]];
            let encoding = Encoding::Float;
            let body = Embeddings { model: "m", values: &values, tokens: 1, encoding }.to_json();
            assert_eq!(body.err().map(|error| error.status), status);
        }
    }
}
