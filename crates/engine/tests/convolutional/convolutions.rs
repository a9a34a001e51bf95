use super::check::check;

/// Output size of a convolution along one axis.
fn extent(input: usize, kernel: usize, stride: usize, dilation: usize, pads: [usize; 2]) -> usize {
    (input + pads[0] + pads[1] - (kernel - 1) * dilation - 1) / stride + 1
}

#[test]
fn convs_of_all_window_shapes_run_channels_last() {
    // Input channels, output channels, groups, kernel, strides, dilations, padding before and
    // after.
    type Case = (usize, usize, usize, [usize; 2], [usize; 2], [usize; 2], [usize; 4]);
    let cases: [Case; 14] = [
        (3, 8, 1, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
        (3, 17, 1, [7, 7], [2, 2], [1, 1], [3, 3, 3, 3]),
        (16, 24, 1, [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
        (5, 7, 1, [1, 1], [2, 3], [1, 1], [0, 0, 0, 0]),
        (8, 9, 1, [3, 2], [1, 2], [2, 3], [0, 2, 3, 1]),
        (20, 33, 1, [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
        (12, 12, 12, [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
        (19, 19, 19, [5, 3], [2, 1], [1, 2], [2, 1, 0, 4]),
        (12, 24, 12, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
        (12, 6, 3, [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
        (32, 32, 8, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
        (40, 60, 2, [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
        (1, 4, 1, [3, 3], [1, 1], [1, 1], [0, 0, 0, 0]),
        (6, 1, 1, [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    ];
    for (channels, outputs, groups, kernel, strides, dilations, pads) in cases {
        let [height, width] = [11, 13];
        let rows = extent(height, kernel[0], strides[0], dilations[0], [pads[0], pads[1]]);
        let columns = extent(width, kernel[1], strides[1], dilations[1], [pads[2], pads[3]]);
        let each = channels / groups;
        let [tall, wide] = kernel;
        let body = format!(
            r#"tensor<T, [2, {outputs}, {rows}, {columns}]> a = conv(x = x,
                weight = W[{outputs}, {each}, {tall}, {wide}], bias = W[{outputs}],
                strides = tensor<int32, [2]>({strides:?}), dilations = tensor<int32, [2]>({dilations:?}),
                pad_type = string("custom"), pad = tensor<int32, [4]>({pads:?}), groups = int32({groups}));
            tensor<T, [2, {outputs}, {rows}, {columns}]> y = relu(x = a);"#
        );
        let kind =
            if groups == channels && groups > 1 { "depthwise conv+relu" } else { "conv+relu" };
        let mut steps = vec!["permute", kind, "permute"];
        if channels == 1 {
            steps.remove(0);
        }
        if outputs == 1 {
            steps.pop();
        }
        check(&[2, channels, height, width], &body, &steps);
    }
}

#[test]
fn conv_handles_same_and_same_lower_padding() {
    for pad_type in ["same", "same_lower"] {
        let body = format!(
            r#"tensor<T, [1, 6, 5, 4]> y = conv(x = x, weight = W[6, 4, 4, 3], pad_type = string("{pad_type}"),
                strides = tensor<int32, [2]>([2, 2]));"#
        );
        check(&[1, 4, 9, 8], &body, &["permute", "conv", "permute"]);
    }
}

#[test]
fn conv_handles_one_and_three_dimensions() {
    check(
        &[2, 10, 33],
        r#"tensor<T, [2, 12, 17]> a = conv(x = x, weight = W[12, 10, 3], strides = tensor<int32, [1]>([2]),
            pad_type = string("custom"), pad = tensor<int32, [2]>([1, 1]));
        tensor<T, [2, 12, 17]> b = gelu(x = a);
        tensor<T, [2, 12, 17]> c = conv(x = b, weight = W[12, 1, 5], groups = int32(12),
            pad_type = string("same"));
        tensor<T, [2, 12, 17]> y = add(x = b, y = c);"#,
        &["permute", "conv+gelu", "depthwise conv+add", "permute"],
    );
    check(
        &[1, 4, 5, 6, 7],
        r#"tensor<T, [1, 8, 3, 6, 7]> a = conv(x = x, weight = W[8, 4, 3, 3, 3], pad_type = string("custom"),
            pad = tensor<int32, [6]>([0, 0, 1, 1, 1, 1]));
        tensor<T, [1, 8, 3, 6, 7]> b = relu(x = a);
        tensor<T, [1, 8, 3, 6, 7]> y = conv(x = b, weight = W[8, 1, 3, 1, 3], groups = int32(8),
            pad_type = string("same"));"#,
        &["permute", "conv+relu", "conv", "permute"],
    );
}

#[test]
fn conv_fuses_elementwise_epilogues() {
    check(
        &[1, 6, 7, 9],
        r#"tensor<T, [1, 10, 7, 9]> a = conv(x = x, weight = W[10, 6, 3, 3], pad_type = string("same"));
        tensor<T, [1, 10, 7, 9]> b = mul(x = a, y = P[1, 10, 1, 1]);
        tensor<T, [1, 10, 7, 9]> c = add(x = W[10, 1, 1], y = b);
        tensor<T, [1, 10, 7, 9]> d = sub(x = c, y = W[1]);
        tensor<T, [1, 10, 7, 9]> y = leaky_relu(x = d, alpha = T(0.125));"#,
        &["permute", "conv+mul+add+sub+leaky_relu", "permute"],
    );
    check(
        &[1, 6, 7, 9],
        r#"tensor<T, [1, 6, 7, 9]> a = conv(x = x, weight = W[6, 6, 3, 3], bias = W[6],
            pad_type = string("same"));
        tensor<T, [1, 6, 7, 9]> b = batch_norm(x = a, mean = W[6], variance = P[6], gamma = W[6], beta = W[6]);
        tensor<T, [1, 6, 7, 9]> c = add(x = x, y = b);
        tensor<T, [1, 6, 7, 9]> d = clip(x = c, alpha = T(-0.25), beta = T(0.5));
        tensor<T, [1, 6, 7, 9]> e = conv(x = d, weight = W[6, 1, 3, 3], groups = int32(6),
            pad_type = string("same"));
        tensor<T, [1, 6, 7, 9]> f = relu6(x = e);
        tensor<T, [1, 6, 7, 9]> y = add(x = f, y = d);"#,
        &["permute", "conv+batch_norm+add+clip", "depthwise conv+relu6+add", "permute"],
    );
}

#[test]
fn conv_with_several_readers_is_not_fused() {
    check(
        &[1, 3, 8, 8],
        r#"tensor<T, [1, 4, 8, 8]> a = conv(x = x, weight = W[4, 3, 1, 1]);
        tensor<T, [1, 4, 8, 8]> b = relu(x = a);
        tensor<T, [1, 4, 8, 8]> c = conv(x = b, weight = W[4, 4, 1, 1]);
        tensor<T, [1, 4, 8, 8]> y = add(x = a, y = c);"#,
        &["permute", "conv", "relu", "conv+add", "permute"],
    );
}

#[test]
fn conv_fuses_multi_op_activations() {
    // In rounded mode each of them rounds.
    let cases = [
        ("silu(x = a)", "conv+silu"),
        ("mul(x = a, y = s)", "conv+sigmoid+mul"),
        ("mul(x = h, y = a)", "conv+sigmoid_hard+mul"),
        ("mul(x = t, y = g)", "conv+thresholded_relu+sigmoid_hard+mul"),
    ];
    for (last, step) in cases {
        let body = format!(
            r#"tensor<T, [1, 8, 5, 5]> a = conv(x = x, weight = W[8, 4, 3, 3]);
            tensor<T, [1, 8, 5, 5]> s = sigmoid(x = a);
            tensor<T, [1, 8, 5, 5]> h = sigmoid_hard(x = a, alpha = T(0.25), beta = T(0.5));
            tensor<T, [1, 8, 5, 5]> t = thresholded_relu(x = a, alpha = T(-2.0));
            tensor<T, [1, 8, 5, 5]> g = sigmoid_hard(x = t, alpha = T(0.25), beta = T(0.5));
            tensor<T, [1, 8, 5, 5]> y = {last};"#
        );
        check(&[1, 4, 7, 7], &body, &["permute", step, "permute"]);
    }
}

#[test]
fn conv_fuses_preceding_zero_pad() {
    check(
        &[1, 3, 7, 9],
        r#"tensor<T, [1, 3, 8, 12]> p = pad(x = x, pad = tensor<int32, [4]>([0, 1, 2, 1]), mode = string("constant"),
            constant_val = T(0.0));
        tensor<T, [1, 8, 4, 6]> y = conv(x = p, weight = W[8, 3, 3, 3], strides = tensor<int32, [2]>([2, 2]),
            pad_type = string("custom"), pad = tensor<int32, [4]>([1, 0, 0, 1]));"#,
        &["permute", "pad+conv", "permute"],
    );
}

#[test]
fn conv_transpose_of_all_windows_runs_channels_last() {
    // Kernel, strides, dilations, groups, padding type and amounts, output size.
    type Case = ([usize; 2], [usize; 2], [usize; 2], usize, &'static str, [usize; 4], [usize; 2]);
    let cases: [Case; 6] = [
        ([2, 2], [2, 2], [1, 1], 1, "valid", [0, 0, 0, 0], [10, 12]),
        ([4, 4], [2, 2], [1, 1], 1, "custom", [1, 1, 1, 1], [10, 12]),
        ([3, 3], [2, 2], [1, 1], 2, "custom", [1, 0, 1, 0], [10, 12]),
        ([3, 2], [1, 3], [2, 1], 4, "valid", [0, 0, 0, 0], [9, 17]),
        ([3, 3], [2, 2], [1, 1], 1, "same", [0, 0, 0, 0], [10, 12]),
        ([1, 3], [3, 2], [1, 1], 1, "custom", [0, 0, 1, 1], [13, 11]),
    ];
    for (kernel, strides, dilations, groups, pad_type, pads, [rows, columns]) in cases {
        let ([tall, wide], each) = (kernel, 12 / groups);
        let body = format!(
            r#"tensor<T, [2, 12, {rows}, {columns}]> a = conv_transpose(x = x, weight = W[8, {each}, {tall}, {wide}],
                bias = W[12], strides = tensor<int32, [2]>({strides:?}), dilations = tensor<int32, [2]>({dilations:?}),
                pad_type = string("{pad_type}"), pad = tensor<int32, [4]>({pads:?}), groups = int32({groups}));
            tensor<T, [2, 12, {rows}, {columns}]> y = relu(x = a);"#
        );
        check(&[2, 8, 5, 6], &body, &["permute", "conv_transpose+relu", "permute"]);
    }
}

#[test]
fn conv_with_computed_weights_is_not_lowered_to_kernel() {
    check(
        &[4, 4, 3, 3],
        r#"tensor<T, [4, 4, 3, 3]> w = tanh(x = x);
        tensor<T, [4, 4, 3, 3]> y = conv(x = x, weight = w, pad_type = string("same"));"#,
        &["tanh", "conv"],
    );
}
