"""The Python drop-in for ExecuTorch's Core ML backend, judged by ExecuTorch's own."""
