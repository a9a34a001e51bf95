//! Tensors of files in the shapes that the decoder declares.

use std::collections::BTreeMap;

use coremill_graph::{Param, Params};

use crate::config::{Config, MAX_LAYERS};
use crate::error::{Error, ErrorKind, Result};
use crate::families::Family;

/// Projections of an expert, under the decoder's name and others.
const EXPERT_PARTS: [(&str, &[&str]); 3] = [
    ("gate_proj", &["gate_proj", "w1"]),
    ("up_proj", &["up_proj", "w3"]),
    ("down_proj", &["down_proj", "w2"]),
];

/// Stacks the experts that files have one by one.
pub(crate) fn stack_experts(params: &mut Params) -> Result<()> {
    let mut stacks: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
    for (name, _) in params.iter() {
        let Some((layer, rest)) = name.split_once(".mlp.experts.") else { continue };
        let Some((index, part)) = rest.split_once('.') else { continue };
        let Ok(index) = index.parse::<usize>() else { continue };
        let part = part.strip_suffix(".weight").unwrap_or(part);
        let known = EXPERT_PARTS.iter().find(|(_, names)| names.contains(&part));
        if let Some((part, _)) = known {
            let stack = stacks.entry(format!("{layer}.mlp.experts.{part}")).or_default();
            stack.insert(index, name.to_owned());
        }
    }
    for (name, parts) in stacks {
        let expected = (0..parts.len()).find(|index| !parts.contains_key(index));
        if let Some(missing) = expected {
            let message = format!("expert {missing} of `{name}` is missing");
            return Err(Error::of_kind(ErrorKind::Format, message));
        }
        let parts: Vec<String> = parts.into_values().collect();
        params.stack(name, &parts)?;
        for part in &parts {
            params.remove(part);
        }
    }
    Ok(())
}

/// Transposes the matrices of layers whose shape is `[inputs, outputs]`.
pub(crate) fn transpose_matrices(params: &mut Params) -> Result<()> {
    let is_matrix =
        |name: &str, param: &Param| name.starts_with("model.layers.") && param.shape().len() == 2;
    let matrices = params.iter().filter(|(name, param)| is_matrix(name, param));
    let names: Vec<String> = matrices.map(|(name, _)| name.to_owned()).collect();
    for name in names {
        let Some(matrix) = params.get(&name) else { continue };
        let transposed = matrix.transposed()?;
        params.set(name, transposed);
    }
    Ok(())
}

/// Restores axes of one element that GGUF files leave out, and removes added ones.
pub(crate) fn restore_axes(family: &Family, params: &mut Params) -> Result<()> {
    for layer in 0..MAX_LAYERS {
        let mut seen = false;
        let parts = ["conv.conv.weight", "mixer.conv1d.weight", "mlp.shared_expert_gate.weight"];
        let flat = ["mixer.A", "mixer.D", "mixer.norm.weight"];
        for part in parts.iter().chain(flat.iter().filter(|_| family.name == "mamba2")) {
            let name = format!("model.layers.{layer}.{part}");
            let Some(param) = params.get(&name) else { continue };
            seen = true;
            let shape = match *param.shape() {
                _ if flat.contains(part) => vec![param.shape().iter().product()],
                [channels, taps] if part.contains("conv") => vec![channels, 1, taps],
                [width] => vec![1, width],
                _ => continue,
            };
            let restored = param.reshaped(shape)?;
            params.set(name, restored);
        }
        if !seen && params.get(&format!("model.layers.{layer}.input_layernorm.weight")).is_none() {
            break;
        }
    }
    Ok(())
}

/// Puts the rows of query and key projections into the order in which the first elements of all pairs of a head precede the
/// second ones.
pub(crate) fn separate_pairs(config: &Config, params: &mut Params) -> Result<()> {
    for layer in 0..config.layers {
        let parts = [
            ("q_proj", config.heads),
            ("k_proj", config.kv_heads),
            ("q_norm", config.heads),
            ("k_norm", config.kv_heads),
        ];
        for (part, heads) in parts {
            for ending in ["weight", "bias"] {
                let name = format!("model.layers.{layer}.self_attn.{part}.{ending}");
                let Some(param) = params.get(&name) else { continue };
                let shape = param.shape().to_vec();
                let is_norm = part.ends_with("norm");
                let flat = match is_norm {
                    true => param.reshaped([shape.iter().product::<u64>()])?,
                    false => param.clone(),
                };
                let extents = [heads as u64, config.head as u64 / 2, 2];
                let separate = flat.with_permuted_rows(&extents, &[0, 2, 1])?;
                params.set(name, if is_norm { separate.reshaped(shape)? } else { separate });
            }
        }
    }
    Ok(())
}
