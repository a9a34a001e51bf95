use coremill_delegate::FORWARD;
use coremill_graph::{Executable, Input};

use super::{Constants, Reader, pays_off};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::model::PREFILL;

/// A program for ExecuTorch's static runners: its methods take the cache, and return new keys and values.
pub(super) struct StaticRunner {
    executable: Executable,
    methods: Vec<Method>,
    /// Positions of the cache.
    cached: usize,
    vocabulary: usize,
    /// Cosines and sines of all positions, of the same shape.
    rotations: [Vec<f32>; 2],
    /// Elements of a position's cosines.
    half: usize,
    caches: Vec<Cache>,
    logits: Vec<f32>,
}

/// A method, with the indices of its inputs.
struct Method {
    name: &'static str,
    tokens: usize,
    inputs: Vec<String>,
    outputs: Vec<String>,
    mask: usize,
    rotations: [usize; 2],
    /// The input and the output of each cache.
    caches: Vec<[usize; 2]>,
    /// Index of the input for the last valid token.
    last: Option<usize>,
}

/// Keys or values of a layer, of shape `[1, heads, positions, head]`.
struct Cache {
    shape: [usize; 4],
    elements: Vec<f32>,
}

impl Cache {
    /// Stores the first rows of `[1, heads, rows, head]`.
    fn store(&mut self, new: &[f32], position: usize, count: usize) -> Result<()> {
        let [_, heads, positions, head] = self.shape;
        let rows = new.len() / (heads * head).max(1);
        if rows < count || position + count > positions || new.len() != heads * rows * head {
            fail!(
                Run,
                "{} new elements do not fit into a cache of shape {:?}",
                new.len(),
                self.shape
            );
        }
        for index in 0..heads {
            let from = &new[index * rows * head..][..count * head];
            let start = (index * positions + position) * head;
            self.elements[start..start + count * head].copy_from_slice(from);
        }
        Ok(())
    }
}

impl StaticRunner {
    pub(super) fn new(mut executable: Executable, constants: &Constants) -> Result<StaticRunner> {
        let vocabulary = constants.required(&mut executable, "vocab_size")?;
        let mut table = |name: &str| match constants.numbers(&mut executable, name)? {
            Some((numbers, shape)) if shape.len() == 2 => {
                Ok((numbers.into_iter().map(|number| number as f32).collect(), shape[1]))
            }
            _ => fail!(Unsupported, "the method `{name}` must return a matrix"),
        };
        let ((cos, half), (sin, _)) = (table("freqs_cos")?, table("freqs_sin")?);
        let prefixes: &[(&str, &'static str)] = match constants.has(PREFILL) {
            true => &[("decode_", FORWARD), ("prefill_", PREFILL)],
            false => &[("", FORWARD)],
        };
        let (mut methods, mut cached) = (Vec::new(), 0);
        for &(prefix, name) in prefixes {
            let (method, positions) = method(&mut executable, constants, prefix, name)?;
            (cached, _) = (positions, methods.push(method));
        }
        let caches = match methods.first() {
            Some(method) => caches(&mut executable, method)?,
            None => Vec::new(),
        };
        if caches.iter().any(|cache| cache.shape[2] != cached) {
            fail!(Unsupported, "layer caches must have {cached} positions");
        }
        let (rotations, logits) = ([cos, sin], Vec::new());
        Ok(StaticRunner {
            executable,
            methods,
            cached,
            vocabulary,
            rotations,
            half,
            caches,
            logits,
        })
    }

    /// Index of the method that reads a number of tokens.
    fn method(&self, left: usize, position: usize) -> usize {
        let fits = |method: &Method| {
            method.tokens > 1 && pays_off(method.tokens, left, position, self.cached)
        };
        self.methods.iter().position(fits).unwrap_or(0)
    }

    /// The rows of a table from a position on, filled up with zeros.
    fn rows(&self, table: usize, position: usize, count: usize) -> Vec<f32> {
        let table = &self.rotations[table];
        let start = (position * self.half).min(table.len());
        let end = ((position + count) * self.half).min(table.len());
        let mut rows = table[start..end].to_vec();
        rows.resize(count * self.half, 0.0);
        rows
    }
}

/// Reads the constants of a method. Returns it with the number of cached positions.
fn method(
    executable: &mut Executable,
    constants: &Constants,
    prefix: &str,
    name: &'static str,
) -> Result<(Method, usize)> {
    let names = |specs: Vec<coremill_graph::FeatureSpec>| -> Vec<String> {
        specs.into_iter().map(|spec| spec.name).collect()
    };
    let inputs = names(executable.inputs(name)?);
    let outputs = names(executable.outputs(name)?);
    let length = match prefix {
        "" => "forward_input_len".to_owned(),
        _ => format!("{prefix}input_len"),
    };
    let tokens = constants.required(executable, &length)?;
    let mut table = |what: &str| -> Result<Vec<usize>> {
        let name = format!("{prefix}{what}");
        let found = constants.numbers(executable, &name)?;
        let numbers = found.map(|(numbers, _)| numbers).unwrap_or_default();
        let sizes = numbers.into_iter().map(|number| number as usize);
        Ok(sizes.collect())
    };
    let (masks, specs) = (table("mask_specs")?, table("kv_cache_specs")?);
    let rotations = [table("freqs_cos_input_index")?, table("freqs_sin_input_index")?];
    let (&[mask, cached], [&[cos], &[sin]]) = (&masks[..], [&rotations[0][..], &rotations[1][..]])
    else {
        let message =
            "programs for static runners must have one mask and one table of rotary embeddings";
        return Err(Error::of_kind(ErrorKind::Unsupported, message));
    };
    let keys = specs.chunks_exact(5).map(|spec| [spec[0], spec[1]]);
    let values = specs.chunks_exact(5).map(|spec| [spec[2], spec[3]]);
    let caches: Vec<[usize; 2]> = keys.chain(values).collect();
    let is_known = caches.iter().all(|&[from, to]| from < inputs.len() && to < outputs.len());
    if !is_known || [mask, cos, sin].iter().any(|&index| index >= inputs.len()) || tokens == 0 {
        fail!(Format, "the constant methods of `{name}` refer to inputs that it does not have");
    }
    // Tokens, mask, cosines, sines and caches; then the index of the last valid token.
    let last = Some(4 + caches.len()).filter(|&last| last < inputs.len());
    let rotations = [cos, sin];
    Ok((Method { name, tokens, inputs, outputs, mask, rotations, caches, last }, cached))
}

/// Empty caches of a method's shapes.
fn caches(executable: &mut Executable, method: &Method) -> Result<Vec<Cache>> {
    let specs = executable.inputs(method.name)?;
    let mut caches = Vec::with_capacity(method.caches.len());
    for &[input, _] in &method.caches {
        let shape = specs[input].default_shape().unwrap_or_default();
        let Ok(shape) = <[usize; 4]>::try_from(shape) else {
            let message = "caches must have the shape [1, heads, positions, head]";
            let error = Error::of_kind(ErrorKind::Unsupported, message);
            return Err(error.with_hint("export with the attention type `static_mha`"));
        };
        caches.push(Cache { shape, elements: vec![0.0; shape.iter().product()] });
    }
    Ok(caches)
}

impl Reader for StaticRunner {
    fn context(&self) -> usize {
        self.cached
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn accumulates(&self) -> bool {
        false
    }

    fn returns_all(&self) -> bool {
        self.methods.iter().all(|method| method.last.is_none())
    }

    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn count(&self, left: usize, position: usize) -> usize {
        left.min(self.methods[self.method(left, position)].tokens)
    }

    fn read(&mut self, ids: &[u32], position: usize) -> Result<&[f32]> {
        let index = self.method(ids.len(), position);
        let block = self.methods[index].tokens;
        let width = self.cached + block;
        let mut tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        tokens.resize(block, 0);
        let mut mask = vec![0.0f32; block * width];
        for (row, scores) in mask.chunks_exact_mut(width).enumerate() {
            scores[position..self.cached].fill(f32::NEG_INFINITY);
            scores[self.cached + row + 1..].fill(f32::NEG_INFINITY);
        }
        let rotations = [0, 1].map(|table| self.rows(table, position, block));
        let last = [ids.len() as i32 - 1];
        let StaticRunner { executable, methods, caches, .. } = self;
        let method = &methods[index];
        let mut inputs: Vec<(&str, &dyn Input)> =
            vec![(&method.inputs[0], &tokens), (&method.inputs[method.mask], &mask)];
        for (&input, rows) in method.rotations.iter().zip(&rotations) {
            inputs.push((&method.inputs[input], rows));
        }
        for (&[input, _], cache) in method.caches.iter().zip(&*caches) {
            inputs.push((&method.inputs[input], &cache.elements));
        }
        if let Some(input) = method.last {
            inputs.push((&method.inputs[input], &last));
        }
        let outputs = executable.run_function(method.name, &inputs)?;
        let floats = |output: usize| match outputs.floats(&method.outputs[output]) {
            Some(floats) => Ok(floats),
            None => fail!(Run, "output {output} of `{}` does not contain floats", method.name),
        };
        for (&[_, output], cache) in method.caches.iter().zip(caches.iter_mut()) {
            cache.store(floats(output)?, position, ids.len())?;
        }
        self.logits.clear();
        self.logits.extend_from_slice(floats(0)?);
        Ok(&self.logits)
    }
}
