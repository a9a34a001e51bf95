use std::fmt;

use super::severity::Severity;

/// Description of a rule.
#[derive(Debug)]
pub struct CodeRow {
    /// The rule.
    pub code: Code,
    /// Name of the rule; the meaning of a name never changes.
    pub name: &'static str,
    /// Severity of a violation.
    pub severity: Severity,
    /// The violation.
    pub what: &'static str,
    /// The reason why it is wrong.
    pub why: &'static str,
    /// Suggested fix. `None` if the fix depends on the violation; diagnostics then have their own hints or
    /// describe the fix in the message.
    pub remedy: Option<&'static str>,
}

macro_rules! codes {
    ($($severity:ident $code:ident $name:literal: $what:literal, $why:literal $(, $remedy:literal)?;)*) => {
        /// A rule that the verifier checks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = concat!("`", $name, "`: ", $what, ".")] $code,)*
        }

        /// All rules, errors first.
        pub const CODES: &[CodeRow] = &[
            $(CodeRow {
                code: Code::$code,
                name: $name,
                severity: Severity::$severity,
                what: $what,
                why: $why,
                remedy: codes!(@remedy $($remedy)?),
            },)*
        ];
    };
    (@remedy) => { None };
    (@remedy $remedy:literal) => { Some($remedy) };
}

codes! {
    // The program's structure.
    Error NoFunction "no-function":
        "the program has no function",
        "there is nothing to run",
        "add a function";
    Error DuplicateFunction "duplicate-function":
        "two functions have the same name",
        "callers select functions by name",
        "rename one of them";
    Error InvalidName "invalid-name":
        "a name is a reserved word or not an identifier",
        "Core ML's compiler writes the program as text and rejects that text when it loads the model",
        "use letters, digits and `_`, start with a letter or `_`, and avoid type names";
    Error DuplicateName "duplicate-name":
        "two values in the same scope have the same name",
        "the model file refers to values by name",
        "rename one of them";
    Error DanglingId "dangling-id":
        "the function refers to a value, operation or block that it does not contain",
        "the program was built incorrectly",
        "use ids only in the function that created them";
    Error SharedBlock "shared-block":
        "a block belongs to two operations, or to an operation inside itself",
        "blocks form a tree",
        "create separate blocks for each operation";
    Error SharedOp "shared-op":
        "an operation appears twice",
        "an operation has one position in one block",
        "add a second operation";
    Error MisplacedValue "misplaced-value":
        "a value's recorded definition does not match its position in the program",
        "each value has one definition",
        "create a separate value for each block input and each operation output";
    Error DeepNesting "deep-nesting":
        "blocks are nested too deeply",
        "readers of programs recurse with a limited stack",
        "flatten the control flow";
    Error UndefinedValue "undefined-value":
        "a value is used before it is defined, or outside the block that defines it",
        "operations run in order, and a block sees only values of its enclosing blocks",
        "define the value earlier, or return it from its block as an output";
    Error NoOutputs "no-outputs":
        "a function has no outputs",
        "Core ML requires at least one output",
        "add a result to the function's outputs";
    Error UnknownOperator "unknown-operator":
        "the operation is unknown",
        "Core ML accepts only operations of its opsets, and the result types of other operations cannot be inferred",
        "replace it with MIL operations; custom layers and operations of later releases cannot be verified";
    Error OperatorTooNew "operator-too-new":
        "the operation requires a later opset than the function's",
        "Core ML looks operations up in the opset that the function declares",
        "raise the function's opset and the model's specification version, or use older operations";
    // Types.
    Error InvalidOperation "invalid-operation":
        "the operation does not support these arguments",
        "Core ML's compiler rejects arguments that violate the operation's definition";
    Error TypeMismatch "type-mismatch":
        "a value's declared type differs from its inferred type",
        "Core ML infers types again when it compiles a model and rejects a mismatch",
        "declare the inferred type";
    Error RankLimit "rank-limit":
        "a tensor has more than five dimensions",
        "Core ML rejects such tensors, except as operands of compressed constants",
        "reshape to merge dimensions";
    // Constants and weights.
    Error ConstantSize "constant-size":
        "the number of elements of a constant differs from its declared shape",
        "Core ML reads past the end or rejects the model",
        "store exactly the number of elements of the shape";
    Error ConstantType "constant-type":
        "a constant's type does not fit its value",
        "only types with a fixed shape have a known number of elements",
        "declare the type of the stored value";
    Error WeightMissing "weight-missing":
        "a weight file is missing, or does not contain an offset that the program refers to",
        "the constant has no value",
        "restore the weight file next to the model";
    Error WeightType "weight-type":
        "a weight file cannot store the element type",
        "the format of weight files does not define `bool`, `string`, `fp64`, `int64` and `uint64`",
        "store the value inside the program";
    // The interface of a function.
    Error ScalarInput "scalar-input":
        "an input is a scalar",
        "Core ML passes arrays and rejects rank 0",
        "declare it as a tensor of shape [1]";
    Error PassedThrough "passed-through":
        "an input is returned as an output",
        "Core ML rejects outputs that no operation computes",
        "insert an `identity`";
    Error DuplicateOutput "duplicate-output":
        "a value is returned twice",
        "outputs are identified by the names of their values",
        "insert an `identity` after one of them";
    Error UnusedInput "unused-input":
        "an input is unused",
        "Core ML rejects unused inputs",
        "remove the input, or pass it to an `identity`";
    Error NoInputs "no-inputs":
        "a function without inputs targets a release before iOS18",
        "releases before iOS18 reject functions without inputs",
        "target iOS18, or add an input";
    Error InterfaceType "interface-type":
        "an input or output has a type that callers cannot pass or read",
        "Core ML passes `fp32` and `int32` arrays, `fp16` from iOS16 and `int8` from iOS26 on, and the labels of classifiers",
        "insert a `cast` at the input or output";
    Error StateType "state-type":
        "a state is not an `fp16` tensor of fixed shape",
        "Core ML stores states in `fp16` buffers of fixed size",
        "declare the state as `fp16` with a fixed shape, and cast the values read from it";
    Error StateTooNew "state-too-new":
        "a model with states targets a release before iOS18",
        "releases before iOS18 do not support states",
        "target iOS18, or pass the buffer as an input and an output";
    // The model around the program.
    Error OpsetTooNew "opset-too-new":
        "a function's opset requires a later specification version than the model's",
        "an older release would load the model and fail on its operations",
        "raise the specification version";
    Error SpecificationVersion "specification-version":
        "the specification version is unknown or does not support ML Programs",
        "ML Programs require version 6 or later",
        "set the version that the function's opset requires";
    Error FunctionsTooNew "functions-too-new":
        "a model with several functions targets a release before iOS18",
        "releases before iOS18 run only the function `main`",
        "target iOS18, or write a model for each function";
    Error DefaultFunction "default-function":
        "the default function is not in the program",
        "Core ML runs this function unless the caller selects another",
        "set it to a function of the program";
    Error DescriptionFunction "description-function":
        "the functions of the description and of the program differ",
        "callers see the functions of the description, and Core ML runs the functions of the program",
        "describe each function of the program exactly once";
    Error FeatureMissing "feature-missing":
        "the description lacks an input, output or state of the function",
        "Core ML binds features by name",
        "describe it";
    Error FeatureUnknown "feature-unknown":
        "the description has an input, output or state that the function lacks",
        "Core ML binds features by name",
        "remove the feature, or rename it to the value in the program";
    Error FeatureDuplicate "feature-duplicate":
        "two features of a function have the same name",
        "Core ML binds features by name",
        "rename one of them";
    Error FeatureType "feature-type":
        "the description and the function disagree on a type or a shape",
        "Core ML rejects the model when it loads or runs it",
        "describe the type declared by the function";
    Error FeatureShape "feature-shape":
        "the default shape and the allowed shapes of a feature contradict each other",
        "Core ML checks the shapes of passed arrays against the description",
        "choose a default shape within the bounds or among the enumerated shapes";
    Error FeatureDefault "feature-default":
        "an optional input has no default value, or a default value outside the range of its type",
        "Core ML uses the default value if the caller omits the input",
        "set a default value of the input's type, or make the input required";
    Error EnumeratedTooNew "enumerated-too-new":
        "several inputs with enumerated shapes target a release before iOS18",
        "releases before iOS18 support enumerated shapes on one input only",
        "target iOS18, or enumerate the shapes of one input";
    Error Classifier "classifier":
        "the description of a classifier does not match the outputs of `classify`",
        "callers read the label by the names in the description",
        "set the predicted feature and predicted probabilities to the outputs of `classify`";

    // Warnings: questionable programs.
    Warning DuplicateOpName "duplicate-op-name":
        "two operations of a function have the same attribute `name`",
        "tools identify operations by name",
        "rename one of them";
    Warning UnknownAttribute "unknown-attribute":
        "MIL does not define the attribute",
        "other readers reject it",
        "remove the attribute";
    Warning ScalarOutput "scalar-output":
        "an output is a scalar",
        "the shape that callers receive differs between releases, and some reject rank 0",
        "return a tensor of shape [1]";
    Warning UnusedWeight "unused-weight":
        "a weight is unused",
        "the package is larger than necessary",
        "remove the constant";
    // Warnings: operations that leave the Neural Engine.
    Warning RangedDimension "ranged-dimension":
        "an input has a dimension with a range",
        "the Neural Engine requires fixed or enumerated shapes; a range moves the model to the CPU or GPU",
        "enumerate the shapes, or fix them";
    Warning HighRank "high-rank":
        "operations compute on tensors with five dimensions",
        "chips before A16 and M4 keep operations on five dimensions off the Neural Engine; M4 runs them",
        "merge dimensions where the operation allows it";
    Warning SinglePrecision "single-precision":
        "operations compute in `fp32`",
        "the Neural Engine computes in `fp16` only",
        "compute in `fp16`, and cast at the edges";
    Warning IntegerArithmetic "integer-arithmetic":
        "operations do arithmetic in `int32`",
        "the Neural Engine computes in `fp16` only",
        "compute once outside the model, or fold it";
    Warning GatherForSlice "gather-for-slice":
        "`gather` selects one fixed element",
        "before A16 and M4, a fixed index on the last axis is reported to read wrong elements; later chips run such a `gather`",
        "use `slice_by_index` with `squeeze_mask`";
    Warning RuntimeIndex "runtime-index":
        "an operation gathers, scatters or slices at indices that are computed at run time",
        "no Neural Engine runs it; such a `gather_nd` is reported to return zeros on an iPhone",
        "look up rows outside the model, or use fixed indices and masks";
    Warning UnsupportedOnAne "unsupported-on-ane":
        "an operation that no Neural Engine runs, or that older chips do not",
        "it runs on the CPU or the GPU, and each change of engine costs time",
        "use other operations, or compute it outside the model; docs/devices.md lists both";
    Warning LargeDimension "large-dimension":
        "a dimension is too large for the Neural Engine",
        "its limit is 65536, for width and height 16384 before A16 and M4, and 32768 for the sum of a `matmul`",
        "split the tensor, or fold the dimension into others";
    Warning LargeWeights "large-weights":
        "a function has more than 1 GB of weights",
        "packages above 1.0 to 1.4 GB are reported to run on the GPU",
        "compress the weights, or split the model";
    Warning SmallModel "small-model":
        "a function is too small for the Neural Engine; reported for a chip that is named",
        "entering and leaving the Neural Engine costs 0.25 ms in Core ML's cost model, so the function runs on the CPU",
        "leave it on the CPU, or enlarge the batch";
    Warning SliceToEnd "slice-to-end":
        "`slice_by_size` with a size of -1",
        "it fails on the Neural Engine",
        "state the size, or use `slice_by_index` with `end_mask`";
    Warning DataDependentShape "data-dependent-shape":
        "the shape of a value depends on data",
        "later operations cannot be planned ahead or run on the Neural Engine, and such programs are reported to crash",
        "use masks of fixed shape";
    Warning Loop "loop":
        "a loop inside the program",
        "loops are reported to stay off the Neural Engine; if the compiler unrolls them, compile time grows faster than the trip count",
        "let the caller loop, with states between the calls";
    // Warnings: known bugs of Core ML's engines.
    Warning WideKernel "wide-kernel":
        "a convolution kernel or a window of `max_pool` is too large for the Neural Engine",
        "kernels wider than 15, higher than 31 or larger than 16 by 16 (less on older chips) run on other engines, 4 to 7 times slower; above 64 elements, wrong values are reported",
        "split the kernel, or compute the convolution as a `matmul`";
    Warning NegativeIndices "negative-indices":
        "`gather` or `scatter` with negative indices from iOS17 on",
        "from iOS17 on they no longer count from the end",
        "add the dimension to negative indices";
    Warning HalfAttention "half-attention":
        "`scaled_dot_product_attention` in `fp16`",
        "the Neural Engine of iOS 26 and macOS 26.1 is reported to produce infinities or NaN",
        "decompose it into `matmul`, `softmax`, `matmul`, or test on these releases";
    Warning AttentionBatch "attention-batch":
        "`scaled_dot_product_attention` over a batch of ten or more",
        "the GPU is reported to produce wrong values",
        "decompose it, or split the batch";
    Warning StateAlignment "state-alignment":
        "the last dimension of a state is not a multiple of 32",
        "on M4, a last dimension of 270 is reported to fail on the Neural Engine and one of 256 to work; other reports found no effect",
        "enlarge the last dimension to a multiple of 32, and slice the state where it is read";
    Warning ManyStates "many-states":
        "a function has three or more states",
        "predictions are reported to fail with error 0x1d",
        "join states of the same shape, or pass the buffers in and out";
    Warning QuantizedProduct "quantized-product":
        "the product of two quantized branches is quantized",
        "the Neural Engine is reported to apply the scale of another branch",
        "insert a `clip` to the range of the result between the product and `quantize`";
    Warning InputGroupScale "input-group-scale":
        "a weight has scales for groups of input channels",
        "the Neural Engine is reported to support only scales per tensor or per output channel",
        "quantize per output channel, or palettize";
    Warning LateSlice "late-slice":
        "a slice starts after the first element of the last axis",
        "on the Neural Engine, values above 4094 are reported to become infinite",
        "slice another axis, or split the tensor earlier";
    Warning TransposedValues "transposed-values":
        "a `matmul` by transposed attention probabilities",
        "deep graphs of this form are reported to abort on the GPU",
        "use `scaled_dot_product_attention`, or transpose the other operand";
    Warning SliceReshape "slice-reshape":
        "`reshape` of a slice that does not begin at the start of the last axis",
        "the GPU engine is reported to drop the offset",
        "transpose first, or slice after the reshape";
    Warning TransposedReduction "transposed-reduction":
        "a reduction between two transposes",
        "the CPU engine is reported to produce wrong sums or to crash",
        "fold the permutation into the axes of the reduction";
    Warning UnfoldedBatchNorm "unfolded-batch-norm":
        "a convolution followed by `sub`, division, `mul` and `add`",
        "the CPU engine is reported to crash on this chain",
        "fold the batch norm into the convolution, or multiply by the reciprocal";
    // Warnings: numbers outside the range of fp16.
    Warning NonFinite "non-finite":
        "an `fp16` constant holds infinities or NaN",
        "masks with the smallest `fp32` become -inf in `fp16`, and fully masked rows become NaN",
        "clamp to -65504 and 65504 before casting";
    Warning HalfOverflow "half-overflow":
        "a constant outside the range of `fp16` is cast to it",
        "it becomes an infinity",
        "clamp to -65504 and 65504 before casting";
    Warning VanishingEpsilon "vanishing-epsilon":
        "an epsilon rounds to zero in `fp16`",
        "the division by zero or the logarithm of zero that it should prevent occurs",
        "use an epsilon of at least 6e-8";
    Warning SquareOverflow "square-overflow":
        "the mean or sum of squares in `fp16`",
        "squares overflow from 256 on, and the Neural Engine's sums of products from 32768 on; such norms are a common cause of infinities",
        "scale before squaring, or compute the norm in `fp32`";
    Warning SumOverflow "sum-overflow":
        "the sum of products of a convolution or linear layer can reach 32768",
        "the Neural Engine sums in fixed point: a partial sum of 32768 is infinite and remains so",
        "scale the weights down and the result up";
    Warning SmallProbabilities "small-probabilities":
        "attention over 4096 or more keys in `fp16`",
        "the Neural Engine rounds products to multiples of 2⁻¹⁶: probabilities around 1/4096 have errors of 4 to 5 %",
        "multiply the probabilities by 64, and divide the result by 64";
    Warning LargeInteger "large-integer":
        "an `int32` constant above 2²⁴",
        "the CPU is reported to compute integers in `fp32`, which rounds them",
        "use smaller integers, or compute outside the model";
    Warning HalfIndices "half-indices":
        "indices that went through `fp16`",
        "`fp16` holds integers exactly only up to 2048",
        "keep indices in `int32`, or `int16`";
}

impl Code {
    /// The description of the rule.
    pub fn row(self) -> &'static CodeRow {
        &CODES[self as usize]
    }

    /// Name of the rule, for instance `undefined-value`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Whether a function that breaks the rule cannot be printed.
    pub(super) fn breaks_text(self) -> bool {
        matches!(
            self,
            Code::DanglingId
                | Code::SharedBlock
                | Code::SharedOp
                | Code::MisplacedValue
                | Code::DeepNesting
        )
    }

    /// Returns the rule with this name.
    pub fn from_name(name: &str) -> Option<Code> {
        CODES.iter().find(|row| row.name == name).map(|row| row.code)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_rows_are_in_order_with_unique_kebab_case_names() {
        for (index, row) in CODES.iter().enumerate() {
            assert_eq!(row.code as usize, index);
            assert_eq!(
                Code::from_name(row.name),
                Some(row.code),
                "`{}` does not lead to its row",
                row.name
            );
            let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(row.name.chars().all(kebab), "`{}`", row.name);
        }
    }
}
