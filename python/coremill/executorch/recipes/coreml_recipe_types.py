"""The names of the recipes."""

from executorch.export import RecipeType

COREML_BACKEND: str = "coreml"


class CoreMLRecipeType(RecipeType):
    """What a recipe does. All of them take ``minimum_deployment_target``, ``compute_unit``,
    ``skip_ops_for_coreml_delegation``, ``lower_full_graph`` and ``take_over_constant_data``."""

    #: Compute in 32 bits.
    FP32 = "coreml_fp32"
    #: Compute in 16 bits.
    FP16 = "coreml_fp16"
    #: Weights and activations in 8 bits; needs samples to calibrate with, and iOS 17.
    PT2E_INT8_STATIC = "coreml_pt2e_int8_static"
    #: Weights in 8 bits; needs iOS 17.
    PT2E_INT8_WEIGHT_ONLY = "coreml_pt2e_int8_weight_only"
    #: 4-bit weights with a scale per row; also accepts ``filter_fn``. Needs iOS 18.
    TORCHAO_INT4_WEIGHT_ONLY_PER_CHANNEL = "coreml_torchao_int4_weight_only_per_channel"
    #: 4-bit weights with a scale per group; also accepts ``group_size`` (32) and ``filter_fn``. Needs iOS 18.
    TORCHAO_INT4_WEIGHT_ONLY_PER_GROUP = "coreml_torchao_int4_weight_only_per_group"
    #: 8-bit weights with a scale per row; also accepts ``filter_fn``. Needs iOS 16.
    TORCHAO_INT8_WEIGHT_ONLY_PER_CHANNEL = "coreml_torchao_int8_weight_only_per_channel"
    #: 8-bit weights with a scale per group; also accepts ``group_size`` (32) and ``filter_fn``. Needs iOS 18.
    TORCHAO_INT8_WEIGHT_ONLY_PER_GROUP = "coreml_torchao_int8_weight_only_per_group"
    #: Weights as indices into tables; needs ``bits`` (1 to 8) and ``block_size`` (a list), takes ``filter_fn``
    #: (embeddings and linear layers, if absent). Needs iOS 18.
    CODEBOOK_WEIGHT_ONLY = "coreml_codebook_weight_only"

    @classmethod
    def get_backend_name(cls) -> str:
        return COREML_BACKEND
