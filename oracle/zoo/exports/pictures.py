"""transformers: image and video networks."""

import torch

from .hugging_face import PICTURE, model, pixels, row

SEEN = ("pixel_values",)
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1]}
PYRAMID = {**STAGES, "image_size": 64, "num_attention_heads": [1, 2, 3, 4]}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
BACKBONE = (
    "ResNetConfig",
    {
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 48, 64],
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage1", "stage2", "stage3", "stage4"],
    },
)
DETR = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "backbone_config": BACKBONE,
    "d_model": 64,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "num_queries": 8,
}
DINO = ("Dinov2Config", {**PICTURE, "out_features": ["stage1", "stage2"], "reshape_hidden_states": False})


def film() -> torch.Tensor:
    """Four video frames."""
    return pixels(32, 1, 4)


def large() -> torch.Tensor:
    """A larger image."""
    return pixels(64)


ROWS = [
    row("vit", "vision", model("ViTForImageClassification", "ViTConfig", PICTURE, SEEN), dialects=True),
    row("vit_eager", "vision", model("ViTModel", "ViTConfig", PICTURE, SEEN, attention="eager")),
    row("deit", "vision", model("DeiTForImageClassificationWithTeacher", "DeiTConfig", PICTURE, SEEN)),
    row(
        "beit",
        "vision",
        model(
            "BeitForImageClassification",
            "BeitConfig",
            {**PICTURE, "use_relative_position_bias": True, "layer_scale_init_value": 0.5},
            SEEN,
        ),
    ),
    row("dinov2", "vision", model("Dinov2Model", "Dinov2Config", PICTURE, SEEN)),
    row("dinov3", "vision", model("DINOv3ViTModel", "DINOv3ViTConfig", {**PICTURE, "num_register_tokens": 2}, SEEN)),
    row("swin_transformers", "vision", model("SwinForImageClassification", "SwinConfig", SWIN, SEEN)),
    row("swinv2_transformers", "vision", model("Swinv2ForImageClassification", "Swinv2Config", SWIN, SEEN)),
    row(
        "convnext_transformers",
        "vision",
        model("ConvNextForImageClassification", "ConvNextConfig", STAGES, {"pixel_values": large}),
    ),
    row(
        "convnextv2",
        "vision",
        model("ConvNextV2ForImageClassification", "ConvNextV2Config", STAGES, {"pixel_values": large}),
    ),
    row(
        "segformer",
        "vision",
        model(
            "SegformerForSemanticSegmentation",
            "SegformerConfig",
            {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 48, 64], "decoder_hidden_size": 32, "num_labels": 4},
            {"pixel_values": large},
        ),
        everyday=True,
    ),
    row(
        "mobilevit_transformers",
        "vision",
        model(
            "MobileViTForImageClassification",
            "MobileViTConfig",
            {"image_size": 64, "hidden_sizes": [24, 32, 40], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 64]},
            {"pixel_values": large},
        ),
    ),
    row(
        "mobilevitv2_segmentation",
        "vision",
        model(
            "MobileViTV2ForSemanticSegmentation",
            "MobileViTV2Config",
            {"width_multiplier": 0.25, "image_size": 64, "aspp_out_channels": 32, "num_labels": 4},
            {"pixel_values": large},
        ),
    ),
    row(
        "poolformer",
        "vision",
        model(
            "PoolFormerForImageClassification",
            "PoolFormerConfig",
            {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 1, 1], "layer_scale_init_value": 0.5},
            {"pixel_values": large},
        ),
    ),
    row("resnet_transformers", "vision", model("ResNetForImageClassification", "ResNetConfig", RESNET, SEEN)),
    row(
        "regnet_transformers",
        "vision",
        model(
            "RegNetForImageClassification",
            "RegNetConfig",
            {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
            SEEN,
        ),
    ),
    row(
        "bit",
        "vision",
        model(
            "BitForImageClassification",
            "BitConfig",
            {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 8},
            SEEN,
        ),
    ),
    row(
        "levit",
        "vision",
        model(
            "LevitForImageClassification",
            "LevitConfig",
            {
                "image_size": 64,
                "hidden_sizes": [32, 48, 64],
                "num_attention_heads": [2, 3, 4],
                "depths": [1, 1, 1],
                "key_dim": [8, 8, 8],
            },
            {"pixel_values": large},
        ),
    ),
    row(
        "pvt",
        "vision",
        model(
            "PvtForImageClassification",
            "PvtConfig",
            PYRAMID,
            {"pixel_values": large},
        ),
    ),
    row(
        "pvt_v2",
        "vision",
        model(
            "PvtV2ForImageClassification",
            "PvtV2Config",
            PYRAMID,
            {"pixel_values": large},
        ),
    ),
    row(
        "focalnet",
        "vision",
        model(
            "FocalNetForImageClassification",
            "FocalNetConfig",
            {
                "image_size": 64,
                "embed_dim": 16,
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "focal_levels": [2, 2],
                "focal_windows": [3, 3],
            },
            {"pixel_values": large},
        ),
    ),
    row(
        "hiera",
        "vision",
        model(
            "HieraModel",
            "HieraConfig",
            {
                "image_size": [64, 64],
                "embed_dim": 24,
                "depths": [1, 1],
                "num_heads": [1, 2],
                "masked_unit_size": [4, 4],
                "query_stride": [2, 2],
                "num_query_pool": 1,
            },
            {"pixel_values": large},
        ),
    ),
    row(
        "swiftformer",
        "vision",
        model(
            "SwiftFormerForImageClassification",
            "SwiftFormerConfig",
            {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [16, 24, 32, 48]},
            {"pixel_values": large},
        ),
    ),
    row(
        "mobilenet_v1",
        "vision",
        model(
            "MobileNetV1ForImageClassification",
            "MobileNetV1Config",
            {"depth_multiplier": 0.25, "image_size": 64},
            {"pixel_values": large},
        ),
    ),
    row(
        "mobilenet_v2_transformers",
        "vision",
        model(
            "MobileNetV2ForSemanticSegmentation",
            "MobileNetV2Config",
            {"depth_multiplier": 0.35, "image_size": 64, "num_labels": 4},
            {"pixel_values": large},
        ),
    ),
    row("siglip_vision", "vision", model("SiglipVisionModel", "SiglipVisionConfig", PICTURE, SEEN)),
    row(
        "clip_vision",
        "vision",
        model("CLIPVisionModelWithProjection", "CLIPVisionConfig", {**PICTURE, "projection_dim": 32}, SEEN),
    ),
    row("ijepa", "vision", model("IJepaModel", "IJepaConfig", PICTURE, SEEN)),
    row(
        "yolos",
        "vision",
        model(
            "YolosForObjectDetection",
            "YolosConfig",
            {**PICTURE, "image_size": [32, 32], "num_detection_tokens": 8},
            SEEN,
        ),
        "detection",
    ),
    row(
        "detr",
        "vision",
        model(
            "DetrForObjectDetection",
            "DetrConfig",
            DETR,
            {"pixel_values": large, "pixel_mask": lambda: torch.ones(1, 64, 64, dtype=torch.long)},
        ),
        "detection",
        everyday=True,
    ),
    row(
        "conditional_detr",
        "vision",
        model("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", DETR, {"pixel_values": large}),
        "detection",
    ),
    row(
        "deformable_detr",
        "vision",
        model(
            "DeformableDetrForObjectDetection",
            "DeformableDetrConfig",
            {**DETR, "num_feature_levels": 4, "decoder_layers": 2},
            {"pixel_values": large},
        ),
        "detection",
    ),
    row(
        "rt_detr",
        "vision",
        model(
            "RTDetrForObjectDetection",
            "RTDetrConfig",
            {
                "backbone_config": (
                    "RTDetrResNetConfig",
                    {
                        "embedding_size": 16,
                        "hidden_sizes": [16, 32, 48, 64],
                        "depths": [1, 1, 1, 1],
                        "layer_type": "basic",
                        "out_features": ["stage2", "stage3", "stage4"],
                    },
                ),
                "encoder_hidden_dim": 32,
                "encoder_in_channels": [32, 48, 64],
                "encoder_ffn_dim": 64,
                "encoder_attention_heads": 4,
                "d_model": 32,
                "decoder_in_channels": [32, 32, 32],
                "decoder_ffn_dim": 64,
                "decoder_attention_heads": 4,
                "decoder_layers": 2,
                "num_queries": 10,
                "anchor_image_size": None,
            },
            {"pixel_values": large},
        ),
        "detection",
    ),
    row(
        "depth_anything",
        "vision",
        model(
            "DepthAnythingForDepthEstimation",
            "DepthAnythingConfig",
            {
                "backbone_config": (
                    "Dinov2Config",
                    {
                        **PICTURE,
                        "num_hidden_layers": 4,
                        "out_features": ["stage1", "stage2", "stage3", "stage4"],
                        "reshape_hidden_states": False,
                        "apply_layernorm": True,
                    },
                ),
                "patch_size": 8,
                "reassemble_hidden_size": 64,
                "neck_hidden_sizes": [16, 24, 32, 48],
                "fusion_hidden_size": 16,
                "head_hidden_size": 8,
            },
            SEEN,
        ),
        "depth",
    ),
    row(
        "dpt",
        "vision",
        model(
            "DPTForDepthEstimation",
            "DPTConfig",
            {
                **PICTURE,
                "num_hidden_layers": 4,
                "backbone_out_indices": [0, 1, 2, 3],
                "neck_hidden_sizes": [16, 24, 32, 48],
                "fusion_hidden_size": 16,
                "is_hybrid": False,
                "use_batch_norm_in_fusion_residual": True,
            },
            SEEN,
        ),
        "depth",
    ),
    row(
        "glpn",
        "vision",
        model(
            "GLPNForDepthEstimation",
            "GLPNConfig",
            {
                "hidden_sizes": [16, 32, 48, 64],
                "depths": [1, 1, 1, 1],
                "decoder_hidden_size": 16,
                "num_attention_heads": [1, 2, 3, 4],
            },
            {"pixel_values": large},
        ),
        "depth",
    ),
    row(
        "upernet",
        "vision",
        model(
            "UperNetForSemanticSegmentation",
            "UperNetConfig",
            {
                "backbone_config": BACKBONE,
                "hidden_size": 32,
                "auxiliary_in_channels": 48,
                "auxiliary_channels": 16,
                "num_labels": 4,
            },
            {"pixel_values": large},
        ),
        "segmentation",
    ),
    row(
        "mask2former",
        "vision",
        model(
            "Mask2FormerForUniversalSegmentation",
            "Mask2FormerConfig",
            {
                "backbone_config": (
                    "SwinConfig",
                    {
                        "image_size": 64,
                        "patch_size": 4,
                        "embed_dim": 16,
                        "depths": [1, 1, 1, 1],
                        "num_heads": [1, 2, 2, 4],
                        "window_size": 4,
                        "out_features": ["stage1", "stage2", "stage3", "stage4"],
                    },
                ),
                "feature_size": 32,
                "mask_feature_size": 32,
                "hidden_dim": 32,
                "encoder_feedforward_dim": 64,
                "dim_feedforward": 64,
                "encoder_layers": 1,
                "decoder_layers": 2,
                "num_attention_heads": 4,
                "num_queries": 6,
                "num_labels": 4,
            },
            {"pixel_values": large},
        ),
        "segmentation",
    ),
    row(
        "maskformer_swin",
        "vision",
        model(
            "MaskFormerForInstanceSegmentation",
            "MaskFormerConfig",
            {
                "backbone_config": (
                    "SwinConfig",
                    {
                        "image_size": 64,
                        "patch_size": 4,
                        "embed_dim": 16,
                        "depths": [1, 1, 1, 1],
                        "num_heads": [1, 2, 2, 4],
                        "window_size": 4,
                        "out_features": ["stage1", "stage2", "stage3", "stage4"],
                    },
                ),
                "fpn_feature_size": 32,
                "mask_feature_size": 32,
                "decoder_config": ("DetrConfig", {**DETR, "d_model": 32}),
                "num_labels": 4,
            },
            {"pixel_values": large},
        ),
        "segmentation",
    ),
    row(
        "vitdet",
        "vision",
        model(
            "VitDetModel",
            "VitDetConfig",
            {
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 64,
                "pretrain_image_size": 64,
                "patch_size": 8,
                "window_block_indices": [0],
                "window_size": 3,
                "use_relative_position_embeddings": True,
            },
            {"pixel_values": large},
        ),
    ),
    row(
        "sam_vision",
        "vision",
        model(
            "SamVisionModel",
            "SamVisionConfig",
            {
                "hidden_size": 64,
                "output_channels": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 64,
                "patch_size": 8,
                "mlp_dim": 128,
                "window_size": 4,
                "global_attn_indexes": [1],
            },
            {"pixel_values": large},
        ),
    ),
    row(
        "swin2sr",
        "vision",
        model(
            "Swin2SRForImageSuperResolution",
            "Swin2SRConfig",
            {"image_size": 32, "embed_dim": 24, "depths": [2], "num_heads": [2], "window_size": 4, "upscale": 2},
            SEEN,
        ),
        "super resolution",
    ),
    row(
        "superpoint",
        "vision",
        model(
            "SuperPointForKeypointDetection",
            "SuperPointConfig",
            {
                "encoder_hidden_sizes": [8, 8, 16, 16],
                "decoder_hidden_size": 16,
                "keypoint_decoder_dim": 65,
                "descriptor_decoder_dim": 16,
            },
            {"pixel_values": large},
        ),
        "as many points as the data say",
    ),
    row(
        "vitpose",
        "vision",
        model(
            "VitPoseForPoseEstimation",
            "VitPoseConfig",
            {
                "backbone_config": (
                    "VitPoseBackboneConfig",
                    {
                        "image_size": [32, 32],
                        "patch_size": [8, 8],
                        "hidden_size": 64,
                        "num_hidden_layers": 2,
                        "num_attention_heads": 4,
                        "out_features": ["stage2"],
                    },
                ),
                "num_labels": 5,
            },
            SEEN,
        ),
        "key points",
    ),
    row(
        "videomae",
        "vision",
        model("VideoMAEForVideoClassification", "VideoMAEConfig", {**PICTURE, "num_frames": 4}, {"pixel_values": film}),
        "films",
    ),
    row(
        "timesformer",
        "vision",
        model(
            "TimesformerForVideoClassification",
            "TimesformerConfig",
            {**PICTURE, "num_frames": 4},
            {"pixel_values": film},
        ),
        "films",
    ),
    row(
        "vivit",
        "vision",
        model(
            "VivitForVideoClassification",
            "VivitConfig",
            {**PICTURE, "num_frames": 4, "tubelet_size": [2, 8, 8]},
            {"pixel_values": film},
        ),
        "films",
    ),
    row(
        "vjepa2",
        "vision",
        model(
            "VJEPA2ForVideoClassification",
            "VJEPA2Config",
            {
                "patch_size": 8,
                "crop_size": 32,
                "frames_per_clip": 4,
                "hidden_size": 48,
                "num_attention_heads": 2,
                "num_hidden_layers": 2,
                "num_pooler_layers": 1,
                "pred_hidden_size": 24,
                "pred_num_attention_heads": 2,
                "pred_num_hidden_layers": 1,
            },
            {"pixel_values_videos": film},
        ),
        "films",
    ),
    row(
        "imagegpt",
        "vision",
        model(
            "ImageGPTForImageClassification",
            "ImageGPTConfig",
            {"vocab_size": 33, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4},
            {"input_ids": lambda: torch.randint(0, 32, (1, 12))},
        ),
        "pictures as tokens",
    ),
    row(
        "mgp_str",
        "vision",
        model(
            "MgpstrForSceneTextRecognition",
            "MgpstrConfig",
            {
                "image_size": [16, 32],
                "patch_size": 8,
                "max_token_length": 5,
                "num_character_labels": 12,
                "num_bpe_labels": 20,
                "num_wordpiece_labels": 20,
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
            },
            {"pixel_values": lambda: torch.randn(1, 3, 16, 32)},
        ),
        "reads text",
    ),
    row(
        "textnet",
        "vision",
        model(
            "TextNetForImageClassification",
            "TextNetConfig",
            {"stem_out_channels": 16, "hidden_sizes": [16, 16, 24, 32, 48], "num_labels": 4},
            {"pixel_values": large},
        ),
    ),
]
