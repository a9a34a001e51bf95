"""torchvision's `nms` and `roi_align` are converted and run by the engine; the results match torch."""

import numpy
import pytest
import torch

import coremill

torchvision = pytest.importorskip("torchvision")

#: Boxes inside an image of 16 by 16, across its edges, outside, without size, of negative size, and larger.
BOXES = [
    [1.0, 2.0, 9.5, 7.25],
    [0.0, 0.0, 16.0, 16.0],
    [-3.0, -2.5, 4.0, 6.0],
    [12.0, 10.0, 30.0, 45.0],
    [40.0, 40.0, 50.0, 50.0],
    [5.0, 5.0, 5.0, 5.0],
    [9.0, 8.0, 3.0, 2.0],
    [-70.3, -51.7, 92.1, 83.9],
    [3.3, 4.4, 3.9, 5.1],
]


class Suppression(torch.nn.Module):
    """Returns the indices of the boxes that non-maximum suppression keeps."""

    def forward(self, boxes, scores):
        return torchvision.ops.nms(boxes, scores, 0.4)


class Kept(torch.nn.Module):
    """Returns the boxes that non-maximum suppression keeps."""

    def forward(self, boxes, scores):
        return boxes[torchvision.ops.nms(boxes, scores, 0.3)]


class Align(torch.nn.Module):
    """Averages the features in the bins of each box."""

    def __init__(self, size, scale, aligned):
        super().__init__()
        self.options = {"output_size": size, "spatial_scale": scale, "sampling_ratio": -1, "aligned": aligned}

    def forward(self, x, rois):
        return torchvision.ops.roi_align(x, rois, **self.options)


def boxes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes, many of which overlap, and their scores."""
    torch.manual_seed(seed)
    corners = torch.rand(count, 2) * 40
    return torch.cat([corners, corners + 5 + torch.rand(count, 2) * 20], 1), torch.rand(count) * 4 - 2


@pytest.mark.parametrize("target", ["ios15", "ios17", "ios18"])
@pytest.mark.parametrize("module", [Suppression, Kept])
def test_nms_matches_torchvision(module, target):
    inputs = boxes(60, 1)
    model = coremill.convert(torch.export.export(module(), inputs), target=target)
    counts = set()
    for seed in range(1, 6):
        inputs = boxes(60, seed)
        expected = module()(*inputs)
        (found,) = model.predict(boxes=inputs[0], scores=inputs[1]).values()
        numpy.testing.assert_allclose(numpy.asarray(found), expected.numpy(), rtol=1e-3, atol=0)
        counts.add(len(expected))
    assert len(counts) > 1, "the inputs should leave different numbers of boxes"


@pytest.mark.parametrize(
    ("size", "scale", "aligned"),
    [((4, 4), 1.0, False), ((3, 5), 0.5, True), ((7, 2), 1.0, True), ((1, 1), 0.25, False)],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_roi_align_adaptive_sampling_matches_torchvision(size, scale, aligned, precision):
    torch.manual_seed(3)
    x = torch.randn(2, 3, 16, 11)
    rois = torch.tensor([[float(at % 2), *box] for at, box in enumerate(BOXES)])
    module = Align(size, scale, aligned)
    model = coremill.convert(torch.export.export(module, (x, rois)), precision=precision)
    (found,) = model.predict(x=x, rois=rois).values()
    bound = 2e-5 if precision == "fp32" else 4e-3
    numpy.testing.assert_allclose(numpy.asarray(found), module(x, rois).numpy(), rtol=bound, atol=bound)
