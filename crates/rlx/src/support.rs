//! Which kinds of operations are lowered, and why others are not.

use rlx_ir::OpKind;

/// Whether a kind of operation is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It becomes operations of Core ML. Some settings may still be refused, with the reason.
    Lowered,
    /// It is refused.
    Refused(&'static str),
}

/// Every kind of `rlx-ir` 0.2.19.
pub const KINDS: [OpKind; 191] = [
    OpKind::Input,
    OpKind::Param,
    OpKind::Constant,
    OpKind::Activation,
    OpKind::Cast,
    OpKind::StopGradient,
    OpKind::Quantize,
    OpKind::Dequantize,
    OpKind::FakeQuantize,
    OpKind::FakeQuantizeLSQ,
    OpKind::FakeQuantizeLSQBackwardX,
    OpKind::FakeQuantizeLSQBackwardScale,
    OpKind::RoundToFormat,
    OpKind::DoubleSingle,
    OpKind::Binary,
    OpKind::Compare,
    OpKind::Where,
    OpKind::Fma,
    OpKind::ElementwiseRegion,
    OpKind::TransformRegion,
    OpKind::BatchElementwiseRegion,
    OpKind::MatMul,
    OpKind::DotGeneral,
    OpKind::DenseSolve,
    OpKind::BatchedDenseSolve,
    OpKind::Cholesky,
    OpKind::TriangularSolve,
    OpKind::Det,
    OpKind::LogDet,
    OpKind::Sort,
    OpKind::ArgSort,
    OpKind::Svd,
    OpKind::Qr,
    OpKind::LayerNorm,
    OpKind::LayerNorm2d,
    OpKind::GroupNorm,
    OpKind::BatchNormInference,
    OpKind::RmsNorm,
    OpKind::ResizeNearest2x,
    OpKind::Interpolate3d,
    OpKind::Attention,
    OpKind::Rope,
    OpKind::AxialRope2d,
    OpKind::Reshape,
    OpKind::Transpose,
    OpKind::Narrow,
    OpKind::Concat,
    OpKind::KvAppend,
    OpKind::Expand,
    OpKind::Gather,
    OpKind::Reverse,
    OpKind::Pad,
    OpKind::Slice,
    OpKind::Roll,
    OpKind::Clamp,
    OpKind::Tile,
    OpKind::Trilu,
    OpKind::Reduce,
    OpKind::Histogram,
    OpKind::Softmax,
    OpKind::Cumsum,
    OpKind::CumProd,
    OpKind::CumMax,
    OpKind::ArgMax,
    OpKind::ArgMin,
    OpKind::TopK,
    OpKind::Sample,
    OpKind::RngNormal,
    OpKind::RngUniform,
    OpKind::Conv,
    OpKind::Im2Col,
    OpKind::ConvTranspose2d,
    OpKind::Conv3d,
    OpKind::ConvTranspose3d,
    OpKind::Pool,
    OpKind::ReluBackward,
    OpKind::ActivationBackward,
    OpKind::FakeQuantizeBackward,
    OpKind::ComplexNormSq,
    OpKind::ComplexNormSqBackward,
    OpKind::Conjugate,
    OpKind::MaxPool2dBackward,
    OpKind::Conv2dBackwardInput,
    OpKind::Conv2dBackwardWeight,
    OpKind::MaxPool3dBackward,
    OpKind::Conv3dBackwardInput,
    OpKind::Conv3dBackwardWeight,
    OpKind::SoftmaxCrossEntropy,
    OpKind::SoftmaxCrossEntropyWithLogits,
    OpKind::SoftmaxCrossEntropyBackward,
    OpKind::AttentionBackward,
    OpKind::AttentionBackwardAll,
    OpKind::LayerNormBackwardInput,
    OpKind::LayerNormBackwardGamma,
    OpKind::RmsNormBackwardInput,
    OpKind::RmsNormBackwardGamma,
    OpKind::RmsNormBackwardBeta,
    OpKind::RopeBackward,
    OpKind::GroupNormBackwardInput,
    OpKind::GroupNormBackwardGamma,
    OpKind::GroupNormBackwardBeta,
    OpKind::BatchNormInferenceBackwardInput,
    OpKind::BatchNormInferenceBackwardGamma,
    OpKind::BatchNormInferenceBackwardBeta,
    OpKind::CumsumBackward,
    OpKind::GatherBackward,
    OpKind::GroupedMatMul,
    OpKind::DequantGroupedMatMul,
    OpKind::DequantGroupedMatMulMlx,
    OpKind::DequantMoEWeights,
    OpKind::ScaledGroupedMatMul,
    OpKind::ScatterAdd,
    OpKind::ScatterNd,
    OpKind::ScatterElements,
    OpKind::GatherNd,
    OpKind::GatherElements,
    OpKind::LoraMatMul,
    OpKind::PartitionedConv,
    OpKind::DequantMatMul,
    OpKind::SynthMatMul,
    OpKind::SynthMatMulBackward,
    OpKind::SynthReconstruct,
    OpKind::SplineActivation,
    OpKind::SplineActivationBackwardX,
    OpKind::SplineActivationBackwardCoeff,
    OpKind::QMatMul,
    OpKind::QConv2d,
    OpKind::ScaledMatMul,
    OpKind::ScaledQuantize,
    OpKind::ScaledQuantScale,
    OpKind::ScaledDequantize,
    OpKind::SelectiveScan,
    OpKind::GatedDeltaNet,
    OpKind::GatedDeltaNetBackward,
    OpKind::Lstm,
    OpKind::Gru,
    OpKind::Rnn,
    OpKind::Mamba2,
    OpKind::FusedSwiGLU,
    OpKind::FusedMatMulBiasAct,
    OpKind::FusedMatMulResidual,
    OpKind::FusedConvBiasAct,
    OpKind::FusedResidualLN,
    OpKind::FusedResidualRmsNorm,
    OpKind::FusedAttentionBlock,
    OpKind::FusedTransformerLayer,
    OpKind::If,
    OpKind::While,
    OpKind::Scan,
    OpKind::ScanBackward,
    OpKind::ScanBackwardXs,
    OpKind::GaussianSplatRender,
    OpKind::GaussianSplatRenderBackward,
    OpKind::GaussianSplatPrepare,
    OpKind::GaussianSplatRasterize,
    OpKind::Custom,
    OpKind::CustomFn,
    OpKind::Fft,
    OpKind::FftPocketFft,
    OpKind::FftQ,
    OpKind::FftButterflyStage,
    OpKind::LogMel,
    OpKind::LogMelBackward,
    OpKind::WelchPeaks,
    OpKind::BiMap,
    OpKind::ReEig,
    OpKind::LogEig,
    OpKind::SpdBatchNorm,
    OpKind::SpdKarcherMean,
    OpKind::ReEigBackward,
    OpKind::LogEigBackward,
    OpKind::SpdBatchNormBackwardX,
    OpKind::SpdBatchNormBackwardG,
    OpKind::SpdKarcherMeanWeighted,
    OpKind::SpdLogMap,
    OpKind::SpdExpMap,
    OpKind::SpdParallelTransport,
    OpKind::SpdMatrixFnBatch,
    OpKind::SpdLogMapBackward,
    OpKind::SpdExpMapBackward,
    OpKind::SpdParallelTransportBackward,
    OpKind::SpdMatrixFnBatchBackward,
    OpKind::Eigh,
    OpKind::EighBackward,
    OpKind::EighBatch,
    OpKind::EighBatchBackward,
    OpKind::AdaLayerNorm,
    OpKind::AdaLayerNormBackward,
    OpKind::GatedResidual,
    OpKind::GatedResidualBackward,
    OpKind::DynamicUpdateSlice,
];

/// Whether a kind of operation is lowered.
pub fn support(kind: OpKind) -> Support {
    match kind {
        OpKind::Input
        | OpKind::Param
        | OpKind::Constant
        | OpKind::Activation
        | OpKind::Cast
        | OpKind::StopGradient
        | OpKind::Quantize
        | OpKind::Dequantize
        | OpKind::Binary
        | OpKind::Compare
        | OpKind::Where
        | OpKind::Fma
        | OpKind::ElementwiseRegion
        | OpKind::MatMul
        | OpKind::Sort
        | OpKind::ArgSort
        | OpKind::LayerNorm
        | OpKind::LayerNorm2d
        | OpKind::GroupNorm
        | OpKind::BatchNormInference
        | OpKind::RmsNorm
        | OpKind::ResizeNearest2x
        | OpKind::Attention
        | OpKind::Reshape
        | OpKind::Transpose
        | OpKind::Narrow
        | OpKind::Concat
        | OpKind::KvAppend
        | OpKind::Expand
        | OpKind::Gather
        | OpKind::Reverse
        | OpKind::Pad
        | OpKind::Slice
        | OpKind::Roll
        | OpKind::Clamp
        | OpKind::Tile
        | OpKind::Trilu
        | OpKind::Reduce
        | OpKind::Histogram
        | OpKind::Softmax
        | OpKind::Cumsum
        | OpKind::ArgMax
        | OpKind::ArgMin
        | OpKind::TopK
        | OpKind::Sample
        | OpKind::RngNormal
        | OpKind::RngUniform
        | OpKind::Conv
        | OpKind::ConvTranspose2d
        | OpKind::Conv3d
        | OpKind::ConvTranspose3d
        | OpKind::Pool
        | OpKind::ReluBackward
        | OpKind::ActivationBackward
        | OpKind::SoftmaxCrossEntropyWithLogits
        | OpKind::SoftmaxCrossEntropyBackward
        | OpKind::LayerNormBackwardInput
        | OpKind::LayerNormBackwardGamma
        | OpKind::RmsNormBackwardInput
        | OpKind::RmsNormBackwardGamma
        | OpKind::RmsNormBackwardBeta
        | OpKind::GroupNormBackwardInput
        | OpKind::CumsumBackward
        | OpKind::GatherBackward
        | OpKind::GroupedMatMul
        | OpKind::ScatterAdd
        | OpKind::ScatterNd
        | OpKind::ScatterElements
        | OpKind::GatherNd
        | OpKind::GatherElements
        | OpKind::LoraMatMul
        | OpKind::DequantMatMul
        | OpKind::SelectiveScan
        | OpKind::GatedDeltaNet
        | OpKind::Mamba2
        | OpKind::FusedSwiGLU
        | OpKind::FusedMatMulBiasAct
        | OpKind::FusedMatMulResidual
        | OpKind::FusedConvBiasAct
        | OpKind::FusedResidualLN
        | OpKind::FusedResidualRmsNorm
        | OpKind::Fft
        | OpKind::AdaLayerNorm
        | OpKind::GatedResidual
        | OpKind::DynamicUpdateSlice => Support::Lowered,
        OpKind::Custom | OpKind::CustomFn => Support::Refused(
            "calls code of its own, which no package can hold: run it in the caller between two graphs",
        ),
        OpKind::ComplexNormSq | OpKind::ComplexNormSqBackward | OpKind::Conjugate => {
            Support::Refused(
                "computes with complex numbers, which Core ML has no tensors of: pass real and imaginary parts",
            )
        }
        OpKind::DenseSolve
        | OpKind::BatchedDenseSolve
        | OpKind::Cholesky
        | OpKind::TriangularSolve
        | OpKind::Det
        | OpKind::LogDet
        | OpKind::Svd
        | OpKind::Qr
        | OpKind::BiMap
        | OpKind::ReEig
        | OpKind::LogEig
        | OpKind::SpdBatchNorm
        | OpKind::SpdKarcherMean
        | OpKind::ReEigBackward
        | OpKind::LogEigBackward
        | OpKind::SpdBatchNormBackwardX
        | OpKind::SpdBatchNormBackwardG
        | OpKind::SpdKarcherMeanWeighted
        | OpKind::SpdLogMap
        | OpKind::SpdExpMap
        | OpKind::SpdParallelTransport
        | OpKind::SpdMatrixFnBatch
        | OpKind::SpdLogMapBackward
        | OpKind::SpdExpMapBackward
        | OpKind::SpdParallelTransportBackward
        | OpKind::SpdMatrixFnBatchBackward
        | OpKind::Eigh
        | OpKind::EighBackward
        | OpKind::EighBatch
        | OpKind::EighBatchBackward => Support::Refused(
            "decomposes matrices, which coremill does not lower yet: compute it in the caller",
        ),
        OpKind::RoundToFormat
        | OpKind::DoubleSingle
        | OpKind::ScaledGroupedMatMul
        | OpKind::ScaledMatMul
        | OpKind::ScaledQuantize
        | OpKind::ScaledQuantScale
        | OpKind::ScaledDequantize
        | OpKind::FftQ => Support::Refused(
            "emulates a number format bit by bit, and Core ML has no operations on bits",
        ),
        _ => Support::Refused("is not lowered yet"),
    }
}
