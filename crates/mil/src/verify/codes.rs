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
        "callers choose functions by name",
        "rename one of them";
    Error InvalidName "invalid-name":
        "a name is not an identifier, or a reserved word",
        "Core ML writes the program as text when it compiles it, and refuses to read that text back",
        "use letters, digits and `_`, begin with a letter or `_`, and avoid names of types";
    Error DuplicateName "duplicate-name":
        "two values that can be seen in one place have the same name",
        "the model file refers to values by name",
        "rename one of them";
    Error DanglingId "dangling-id":
        "the function refers to a value, operation or block that it does not hold",
        "the program was put together wrongly",
        "take ids only from the function that they are used in";
    Error SharedBlock "shared-block":
        "a block is run by two operations, or by one inside itself",
        "blocks form a tree",
        "give each operation blocks of its own";
    Error SharedOp "shared-op":
        "an operation stands in two places",
        "each operation runs once each time its block runs",
        "add a second operation";
    Error MisplacedValue "misplaced-value":
        "a value says that it comes from elsewhere than where it is defined",
        "each value has one definition",
        "let each block input and each output of an operation be a value of its own";
    Error DeepNesting "deep-nesting":
        "blocks nest too deep",
        "readers of programs work their way down with limited stacks",
        "flatten the control flow";
    Error UndefinedValue "undefined-value":
        "a value is used before it is defined, or outside the block that defines it",
        "operations run in order, and blocks see only what stands around them",
        "define the value before, or pass it out of its block as an output";
    Error NoOutputs "no-outputs":
        "a function gives nothing",
        "Core ML requires an output",
        "add what the function computes to its outputs";
    Error UnknownOperator "unknown-operator":
        "the operation is unknown",
        "Core ML knows the operations of its opsets, and nothing here can tell what another one gives",
        "replace it by operations that MIL has; custom layers and operations of later releases cannot be verified";
    Error OperatorTooNew "operator-too-new":
        "the operation came with a later opset than the function's",
        "Core ML looks operations up in the opset that the function declares",
        "raise the function's opset and the model's specification version, or use older operations";
    // Types.
    Error InvalidOperation "invalid-operation":
        "an operation cannot stand with these arguments",
        "its definition, as Core ML's compiler knows it, does not accept them";
    Error TypeMismatch "type-mismatch":
        "a value is declared with another type than it has",
        "Core ML infers types again when it compiles, and refuses programs that declare others",
        "declare the type that the operation gives";
    Error RankLimit "rank-limit":
        "a tensor has more than five dimensions",
        "Core ML refuses such tensors, except among the operands of compressed constants",
        "reshape so that dimensions merge";
    // Constants and weights.
    Error ConstantSize "constant-size":
        "a constant does not hold just the elements that its type declares",
        "Core ML reads past the end, or refuses it",
        "state as many elements as the shape has";
    Error ConstantType "constant-type":
        "a constant's type is not one that its value could have",
        "only types of fixed shape have a known number of elements",
        "declare the type of the value that is stated";
    Error WeightMissing "weight-missing":
        "a weight file, or a place in it, that the program refers to was not found",
        "the constant has no value",
        "put the weight file back beside the model";
    Error WeightType "weight-type":
        "a weight file holds elements of a type that it cannot",
        "weight files have no code for `bool`, `string`, `fp64`, `int64` and `uint64`",
        "state the value inside the program";
    // The interface of a function.
    Error ScalarInput "scalar-input":
        "an input is a scalar",
        "Core ML passes arrays, and refuses rank 0",
        "declare it as a tensor of shape [1]";
    Error PassedThrough "passed-through":
        "an input is returned as an output",
        "Core ML refuses outputs that nothing computes",
        "put an `identity` in between";
    Error DuplicateOutput "duplicate-output":
        "a value is returned twice",
        "outputs are told apart by the names of their values",
        "put an `identity` behind one of them";
    Error UnusedInput "unused-input":
        "nothing uses an input",
        "Core ML refuses inputs without a use",
        "remove the input, or pass it to an `identity`";
    Error NoInputs "no-inputs":
        "a function takes nothing, before iOS18",
        "older releases refuse functions without inputs",
        "target iOS18, or add an input";
    Error InterfaceType "interface-type":
        "an input or output has a type that callers cannot pass or get",
        "Core ML passes `fp32` and `int32` arrays, `fp16` from iOS16 and `int8` from iOS26 on, and the labels of classifiers",
        "cast it at the edge of the function";
    Error StateType "state-type":
        "a state is not a `fp16` tensor of fixed shape",
        "Core ML keeps states in buffers of fixed size, in `fp16` only",
        "declare the state as `fp16` with a fixed shape, and cast what is read from it";
    Error StateTooNew "state-too-new":
        "a state before iOS18",
        "older releases do not know states",
        "target iOS18, or pass the buffer in and out";
    // The model around the program.
    Error OpsetTooNew "opset-too-new":
        "a function's opset came with a later release than the model's specification version",
        "an older release would try to load the model and fail on its operations",
        "raise the specification version";
    Error SpecificationVersion "specification-version":
        "the specification version has no ML Programs, or is not known",
        "ML Programs came with version 6",
        "state the version that the function's opset needs";
    Error FunctionsTooNew "functions-too-new":
        "more than one function before iOS18",
        "older releases run the function `main` and know no others",
        "target iOS18, or write a model for each function";
    Error DefaultFunction "default-function":
        "the default function is not in the program",
        "callers who name no function get this one",
        "name a function that the program has";
    Error DescriptionFunction "description-function":
        "the description and the program have different functions",
        "Core ML tells callers what the description says, and runs what the program has",
        "describe each function of the program once";
    Error FeatureMissing "feature-missing":
        "the description lacks an input, output or state of the function",
        "Core ML binds features by name",
        "describe it";
    Error FeatureUnknown "feature-unknown":
        "the description has an input, output or state that the function has not",
        "Core ML binds features by name",
        "remove the feature, or rename it after the value in the program";
    Error FeatureDuplicate "feature-duplicate":
        "two features of a function have the same name",
        "Core ML binds features by name",
        "rename one of them";
    Error FeatureType "feature-type":
        "the description and the function disagree on a type or a shape",
        "Core ML refuses the model when it is loaded, or when it runs",
        "describe the type that the function declares";
    Error FeatureShape "feature-shape":
        "the shapes that a feature may have contradict each other",
        "Core ML checks what callers pass against them",
        "let the default shape lie within the bounds, or among the enumerated shapes";
    Error FeatureDefault "feature-default":
        "an optional input without a default value, or a default value that its type cannot hold",
        "Core ML needs a value where the caller passes none",
        "give a default value of the input's type, or make the input required";
    Error EnumeratedTooNew "enumerated-too-new":
        "enumerated shapes on more than one input before iOS18",
        "older releases refuse this",
        "target iOS18, or enumerate the shapes of one input";
    Error Classifier "classifier":
        "the description of a classifier does not match what `classify` gives",
        "callers look the label up by the names in the description",
        "name the outputs of `classify` as predicted feature and predicted probabilities";

    // Warnings: questionable programs.
    Warning DuplicateOpName "duplicate-op-name":
        "two operations of a function have the same attribute `name`",
        "tools that refer to operations by name take one for the other",
        "rename one of them";
    Warning UnknownAttribute "unknown-attribute":
        "an attribute that MIL does not define",
        "other readers refuse it",
        "remove the attribute";
    Warning ScalarOutput "scalar-output":
        "an output is a scalar",
        "releases differ in the shape that callers get, and some refuse rank 0",
        "return a tensor of shape [1]";
    Warning UnusedWeight "unused-weight":
        "nothing uses a weight",
        "the package is larger than it needs to be",
        "remove the constant";
    // Warnings: operations that leave the Neural Engine.
    Warning RangedDimension "ranged-dimension":
        "an input has a dimension with a range",
        "the Neural Engine wants fixed or enumerated shapes; a range sends the model to CPU or GPU",
        "enumerate the shapes, or fix them";
    Warning HighRank "high-rank":
        "operations compute on tensors with five dimensions",
        "operations on more than four dimensions are reported to stay off the Neural Engine",
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
        "`gather` takes one fixed element",
        "the Neural Engine prefers slices; such an index alone can keep the operation off it",
        "use `slice_by_index` with `squeeze_mask`";
    Warning SliceToEnd "slice-to-end":
        "`slice_by_size` with a size of -1",
        "it fails on the Neural Engine",
        "state the size, or use `slice_by_index` with `end_mask`";
    Warning DataDependentShape "data-dependent-shape":
        "the shape of a value depends on data",
        "nothing behind it can be planned ahead or run on the Neural Engine, and such programs are reported to crash",
        "use masks of fixed shape";
    Warning Loop "loop":
        "a loop inside the program",
        "loops are reported to stay off the Neural Engine, and where the compiler unrolls them it takes time that grows faster than the trip count",
        "let the caller loop, with states between the calls";
    // Warnings: known bugs of Core ML's engines.
    Warning WideKernel "wide-kernel":
        "a convolution kernel spans more than 64 elements",
        "two-dimensional kernels of such extent are reported to give wrong values without a word",
        "split the kernel, or compute the convolution as a `matmul`";
    Warning NegativeIndices "negative-indices":
        "`gather` or `scatter` with negative indices from iOS17 on",
        "from iOS17 on they do not count from the end any more",
        "add the dimension to negative indices";
    Warning HalfAttention "half-attention":
        "`scaled_dot_product_attention` in `fp16`",
        "on the Neural Engine of iOS 26 and macOS 26.1 it is reported to give infinities or NaN",
        "decompose it into `matmul`, `softmax`, `matmul`, or test on these releases";
    Warning AttentionBatch "attention-batch":
        "`scaled_dot_product_attention` over a batch of ten or more",
        "on the GPU it is reported to give wrong values",
        "decompose it, or split the batch";
    Warning StateAlignment "state-alignment":
        "the last dimension of a state is not a multiple of 32",
        "the Neural Engine wants rows of such lengths",
        "pad the last dimension to a multiple of 32";
    Warning SliceReshape "slice-reshape":
        "`reshape` of a slice that does not begin at the start of the last axis",
        "the GPU engine is reported to drop the offset",
        "transpose first, or slice after the reshape";
    Warning TransposedReduction "transposed-reduction":
        "a reduction between two transposes",
        "the CPU engine is reported to give wrong sums or to crash",
        "fold the permutation into the axes of the reduction";
    Warning UnfoldedBatchNorm "unfolded-batch-norm":
        "a convolution followed by `sub`, division, `mul` and `add`",
        "the CPU engine is reported to crash on this chain",
        "fold the batch norm into the convolution, or multiply by the reciprocal";
    // Warnings: numbers outside the range of fp16.
    Warning NonFinite "non-finite":
        "an `fp16` constant holds infinities or NaN",
        "masks of the smallest `fp32` become -inf in `fp16`, and rows that are masked as a whole become NaN",
        "clamp to -65504 and 65504 before casting";
    Warning HalfOverflow "half-overflow":
        "a constant outside the range of `fp16` is cast to it",
        "it becomes an infinity",
        "clamp to -65504 and 65504 before casting";
    Warning VanishingEpsilon "vanishing-epsilon":
        "an epsilon rounds to zero in `fp16`",
        "what it guards against, a division by zero or the logarithm of zero, happens",
        "use an epsilon of at least 6e-8";
    Warning SquareOverflow "square-overflow":
        "the mean or sum of squares in `fp16`",
        "squares overflow from 256 on; norms written so are a common cause of infinities",
        "scale before squaring, or compute the norm in `fp32`";
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
    fn rows_stand_at_their_codes_under_distinct_names() {
        for (index, row) in CODES.iter().enumerate() {
            assert_eq!(row.code as usize, index);
            assert_eq!(Code::from_name(row.name), Some(row.code), "`{}` stands twice", row.name);
            let kebab = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(row.name.chars().all(kebab), "`{}`", row.name);
        }
    }
}
