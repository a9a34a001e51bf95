"""A zoo of `.pt2` archives, exported from seeded random weights, with the outputs of eager torch.

They are the reference for `coremill convert`. Nothing is downloaded.

    python -m oracle.zoo.exports OUTDIR [--only NAME ...] [--family FAMILY ...] [--list]

Files of each row of `table`:
    `NAME.pt2`       `torch.export.export` with its defaults, saved by `torch.export.save`;
    `NAME.core.pt2`  for some, the same after `run_decompositions({})`;
    `NAME.edge.pt2`  for some, the same in ExecuTorch's edge dialect, saved by `executorch.exir.save`;
    `NAME.npz`       `in0`, `in1`, ... are the input tensors in the order of the program's placeholders, and `out0`,
                     `out1`, ... the output tensors; further calls are `in0@1`, `out0@1`, ...;
    `NAME.json`      names and types of the inputs and outputs, the buffers that change, and notes; or the reason why
                     torch could not export it.

Further calls have other shapes if the program allows that; they follow one another on the same buffers if these change.

The modules are named by families: `vision` (torchvision), `image` (timm), `text`, `pictures`, `sound` and `several`
(transformers), `layers` (torch's recurrent and attention layers), `control`, `shapes`, `states`, `views`, `numbers`; `packages` holds
models of packages that no other test needs (`diffusers`, `torchaudio`, `kornia`, `monai`, `torch_geometric`, `neuralop`,
`ultralytics`). Its rows exist if these packages are installed, which `cargo xtask zoo --further` does.
"""
