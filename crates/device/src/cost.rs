//! The cost model of Core ML's segmenter, and estimates of the time that an operation takes.
//!
//! Core ML estimates a time for each operation on each engine and takes the cheapest path through the operations in program
//! order. The costs of segments and switches are published; of the times, a dozen. Other operations get the time of the
//! published operation that is most like them, scaled by arithmetic and by the bytes that it reads and writes in `fp16`.

/// Cost of entering a segment on the Neural Engine, in milliseconds.
pub const SEGMENT_MS: f64 = 0.125;
/// Cost of each change of engine, in milliseconds.
pub const SWITCH_MS: f64 = 0.125;
/// Cost of a graph whose last segment is on the Neural Engine, in milliseconds.
pub const END_MS: f64 = 0.125;

/// Kind of work of an operation, which determines its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CostClass {
    /// Nothing that takes time: names, shapes, states.
    Free,
    /// A convolution.
    Convolution,
    /// A product of matrices.
    Product,
    /// Element by element.
    Elementwise,
    /// Reductions, norms, `softmax`, attention, pooling.
    Reduction,
    /// Copies into or out of parts of a tensor.
    Copy,
    /// Permutation of axes.
    Transpose,
    /// Resizing of images.
    Resize,
}

/// Time of an operation on an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Microseconds of each operation.
    pub fixed: f64,
    /// Microseconds of a million floating-point operations.
    pub per_million: f64,
    /// Microseconds of a million bytes read and written.
    pub per_megabyte: f64,
}

/// Time of the operations of a class.
#[derive(Debug)]
pub struct CostRow {
    /// The class.
    pub class: CostClass,
    /// The operations that it is for, as people read it.
    pub what: &'static str,
    /// On the Neural Engine.
    pub neural_engine: Cost,
    /// On the CPU.
    pub cpu: Cost,
    /// The published estimates that it repeats, in microseconds on the Neural Engine and the CPU.
    pub published: &'static str,
}

/// Amount of work of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations, a multiply-add counted as two.
    pub flops: f64,
    /// Bytes read and written, in `fp16`.
    pub bytes: f64,
}

const fn cost(fixed: f64, per_million: f64, per_megabyte: f64) -> Cost {
    Cost { fixed, per_million, per_megabyte }
}

/// Every class, estimated for an M4.
pub const COSTS: &[CostRow] = &[
    CostRow {
        class: CostClass::Free,
        what: "reshapes, states, identities",
        neural_engine: cost(0.0, 0.0, 0.0),
        cpu: cost(0.0, 0.0, 0.0),
        published: "none",
    },
    CostRow {
        class: CostClass::Convolution,
        what: "convolutions",
        neural_engine: cost(0.7325, 0.052_154, 0.0),
        cpu: cost(11.815, 1.168_85, 0.0),
        published: "3×3, 64 to 64 channels at 32×32: 4.67 / 100.06; 1×1: 1.17 / 21.62",
    },
    CostRow {
        class: CostClass::Product,
        what: "matrix products",
        neural_engine: cost(0.164, 0.052_154, 10.0),
        cpu: cost(0.765, 1.0, 12.0),
        published: "128×256 by 256×128: 2.24 / 11.12",
    },
    CostRow {
        class: CostClass::Elementwise,
        what: "elementwise operations",
        neural_engine: cost(0.0, 0.0, 9.9945),
        cpu: cost(0.0, 0.0, 9.9945),
        published: "`relu` of 64×32×32: 2.62 / 2.62",
    },
    CostRow {
        class: CostClass::Reduction,
        what: "reductions, norms, `softmax`, attention, pooling",
        neural_engine: cost(0.0, 0.0, 13.695),
        cpu: cost(0.0, 0.0, 16.441),
        published: "`softmax`, `layer_norm` of 64×32×32: 3.59 / 4.31; attention of 1×8×128×64: 7.18 / 8.62",
    },
    CostRow {
        class: CostClass::Copy,
        what: "joins, splits, slices, padding",
        neural_engine: cost(0.0, 0.0, 9.9945),
        cpu: cost(0.0, 0.0, 86.94),
        published: "`concat` of channels: 2.62 / 22.79",
    },
    CostRow {
        class: CostClass::Transpose,
        what: "permutations of axes",
        neural_engine: cost(0.0, 0.0, 14.534),
        cpu: cost(0.0, 0.0, 11.444),
        published: "height and width swapped: 3.81 / 3.00",
    },
    CostRow {
        class: CostClass::Resize,
        what: "resizing",
        neural_engine: cost(0.0, 0.0, 5.0507),
        cpu: cost(0.0, 0.0, 762.4),
        published: "`upsample_bilinear` by 2: 3.31 / 499.64",
    },
];

impl Cost {
    /// The time in milliseconds.
    pub fn milliseconds(self, work: Work) -> f64 {
        let arithmetic = self.per_million * work.flops / 1e6;
        let memory = self.per_megabyte * work.bytes / 1e6;
        (self.fixed + arithmetic + memory) / 1e3
    }
}

/// The row of a class.
pub fn costs(class: CostClass) -> &'static CostRow {
    &COSTS[class as usize]
}

/// The class of an operation, by its name in MIL.
pub fn cost_class(operation: &str) -> CostClass {
    match operation {
        "conv" | "conv_transpose" | "conv_quantized" => CostClass::Convolution,
        "linear" | "matmul" | "einsum" => CostClass::Product,
        "reshape" | "reshape_like" | "squeeze" | "expand_dims" | "flatten2d" | "identity"
        | "shape" | "read_state" | "write_state" => CostClass::Free,
        "transpose" | "depth_to_space" | "space_to_depth" | "pixel_shuffle" | "pixel_unshuffle"
        | "batch_to_space" | "space_to_batch" => CostClass::Transpose,
        "concat" | "stack" | "split" | "tile" | "pad" | "slice_by_index" | "slice_by_size"
        | "slice_update" | "crop" | "gather" | "gather_nd" | "gather_along_axis" | "reverse"
        | "scatter" | "scatter_nd" | "scatter_along_axis" => CostClass::Copy,
        "softmax"
        | "layer_norm"
        | "instance_norm"
        | "batch_norm"
        | "l2_norm"
        | "local_response_norm"
        | "scaled_dot_product_attention"
        | "avg_pool"
        | "max_pool"
        | "l2_pool"
        | "topk"
        | "argsort"
        | "cumsum" => CostClass::Reduction,
        "resize"
        | "resize_bilinear"
        | "resize_nearest_neighbor"
        | "upsample_bilinear"
        | "upsample_nearest_neighbor"
        | "resample"
        | "affine"
        | "crop_resize" => CostClass::Resize,
        name if name.starts_with("reduce_") => CostClass::Reduction,
        _ => CostClass::Elementwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published estimates in microseconds: operation, work, Neural Engine, CPU.
    #[test]
    fn cost_table_matches_published_estimates() {
        let elements = 64.0 * 32.0 * 32.0;
        let convolution =
            |kernel: f64| Work { flops: 2.0 * kernel * 64.0 * elements, bytes: 4.0 * elements };
        let bytes = |elements: f64| Work { flops: 0.0, bytes: 2.0 * elements };
        let product = Work {
            flops: 2.0 * 128.0 * 256.0 * 128.0,
            bytes: 2.0 * (2.0 * 128.0 * 256.0 + 128.0 * 128.0),
        };
        for (operation, work, neural_engine, cpu) in [
            ("conv", convolution(9.0), 4.67, 100.06),
            ("conv", convolution(1.0), 1.17, 21.62),
            ("matmul", product, 2.24, 11.12),
            ("upsample_bilinear", bytes(5.0 * elements), 3.31, 499.64),
            ("concat", bytes(2.0 * elements), 2.62, 22.79),
            ("scaled_dot_product_attention", bytes(4.0 * elements), 7.18, 8.62),
            ("softmax", bytes(2.0 * elements), 3.59, 4.31),
            ("layer_norm", bytes(2.0 * elements), 3.59, 4.31),
            ("relu", bytes(2.0 * elements), 2.62, 2.62),
            ("transpose", bytes(2.0 * elements), 3.81, 3.00),
        ] {
            let row = costs(cost_class(operation));
            let found = [row.neural_engine, row.cpu].map(|cost| cost.milliseconds(work) * 1e3);
            for (found, expected) in found.into_iter().zip([neural_engine, cpu]) {
                assert!((found - expected).abs() < 0.01 * expected, "{operation}: {found}");
            }
        }
    }

    #[test]
    fn cost_rows_are_indexed_by_class() {
        for (index, row) in COSTS.iter().enumerate() {
            assert_eq!(row.class as usize, index, "{}", row.what);
        }
    }
}
