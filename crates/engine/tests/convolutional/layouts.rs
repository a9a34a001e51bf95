use super::check::check;

#[test]
fn squeeze_excite_block_permutes_only_at_ends() {
    check(
        &[2, 6, 7, 5],
        r#"tensor<T, [2, 12, 7, 5]> a = conv(x = x, weight = W[12, 6, 1, 1]);
        tensor<T, [2, 12, 7, 5]> b = silu(x = a);
        tensor<T, [2, 12, 1, 1]> m = reduce_mean(x = b, axes = tensor<int32, [2]>([2, 3]), keep_dims = bool(true));
        tensor<T, [2, 4, 1, 1]> c = conv(x = m, weight = W[4, 12, 1, 1], bias = W[4]);
        tensor<T, [2, 4, 1, 1]> d = relu(x = c);
        tensor<T, [2, 12, 1, 1]> e = conv(x = d, weight = W[12, 4, 1, 1], bias = W[12]);
        tensor<T, [2, 12, 1, 1]> f = sigmoid(x = e);
        tensor<T, [2, 12, 7, 5]> g = mul(x = f, y = b);
        tensor<T, [2, 6, 7, 5]> h = conv(x = g, weight = W[6, 12, 1, 1]);
        tensor<T, [2, 6, 7, 5]> y = add(x = h, y = x);"#,
        &[
            "permute",
            "conv+silu",
            "reduce_mean",
            "conv+relu",
            "conv+sigmoid",
            "mul",
            "conv+add",
            "permute",
        ],
    );
}

#[test]
fn program_transposes_cancel_layout_permutes() {
    check(
        &[1, 6, 7, 5],
        r#"tensor<T, [1, 6, 7, 5]> a = conv(x = x, weight = W[6, 1, 3, 3], groups = int32(6), pad_type = string("same"));
        tensor<T, [1, 7, 5, 6]> b = transpose(x = a, perm = tensor<int32, [4]>([0, 2, 3, 1]));
        tensor<T, [1, 7, 5, 9]> c = linear(x = b, weight = W[9, 6]);
        tensor<T, [1, 7, 5, 9]> d = gelu(x = c);
        tensor<T, [1, 7, 5, 6]> e = linear(x = d, weight = W[6, 9]);
        tensor<T, [1, 6, 7, 5]> f = transpose(x = e, perm = tensor<int32, [4]>([0, 3, 1, 2]));
        tensor<T, [1, 6, 7, 5]> g = add(x = x, y = f);
        tensor<T, [1, 6, 7, 5]> y = conv(x = g, weight = W[6, 6, 3, 3], pad_type = string("same"));"#,
        &["permute", "depthwise conv", "linear+gelu", "linear+add", "conv", "permute"],
    );
}

#[test]
fn patch_embedding_flattens_without_copy() {
    check(
        &[1, 3, 8, 8],
        r#"tensor<T, [1, 10, 2, 2]> a = conv(x = x, weight = W[10, 3, 4, 4], strides = tensor<int32, [2]>([4, 4]));
        tensor<T, [1, 10, 4]> b = reshape(x = a, shape = tensor<int32, [3]>([1, 10, 4]));
        tensor<T, [1, 4, 10]> c = transpose(x = b, perm = tensor<int32, [3]>([0, 2, 1]));
        tensor<T, [1, 4, 6]> y = linear(x = c, weight = W[6, 10]);"#,
        &["permute", "conv", "linear"],
    );
}

#[test]
fn concat_pad_slice_and_split_run_channels_last() {
    check(
        &[1, 4, 6, 8],
        r#"tensor<T, [1, 6, 6, 8]> a = conv(x = x, weight = W[6, 4, 1, 1]);
        tensor<T, [1, 14, 6, 8]> b = concat(values = (a, x, W[1, 4, 6, 8]), axis = int32(-3), interleave = bool(false));
        tensor<T, [1, 14, 9, 9]> c = pad(x = b, pad = tensor<int32, [4]>([1, 2, 0, 1]), mode = string("reflect"));
        tensor<T, [1, 5, 7, 4]> d = slice_by_index(x = c, begin = tensor<int32, [4]>([0, 3, 0, 8]),
            end = tensor<int32, [4]>([1, 8, 7, 0]), stride = tensor<int32, [4]>([1, 1, 1, -2]),
            begin_mask = tensor<bool, [4]>([false, false, true, false]));
        tensor<T, [1, 2, 7, 4]> e, tensor<T, [1, 3, 7, 4]> f =
            split(x = d, split_sizes = tensor<int32, [2]>([2, 3]), axis = int32(1));
        tensor<T, [1, 2, 7, 4]> g = conv(x = f, weight = W[2, 3, 3, 3], pad_type = string("same"));
        tensor<T, [1, 2, 7, 4]> h = prelu(x = g, alpha = W[2]);
        tensor<T, [1, 2, 7, 4]> y = add(x = h, y = e);"#,
        &[
            "permute",
            "conv",
            "concat",
            "pad",
            "slice_by_index",
            "split",
            "conv",
            "minimum+maximum+mul+add+add",
            "permute",
        ],
    );
}

#[test]
fn pixel_shuffle_ops_become_single_permute() {
    let cases = [
        ("pixel_shuffle", "upscale_factor = int32(2)", [2, 10, 14]),
        ("depth_to_space", "block_size = int32(2)", [2, 10, 14]),
        ("pixel_unshuffle", "downscale_factor = uint32(2)", [32, 3, 4]),
        ("space_to_depth", "block_size = int32(2)", [32, 3, 4]),
    ];
    for (operation, argument, [channels, height, width]) in cases {
        let x = if channels == 2 { [1, 3, 5, 7] } else { [1, 3, 6, 8] };
        let [_, _, rows, columns] = x;
        let body = format!(
            r#"tensor<T, [1, 8, {rows}, {columns}]> a = conv(x = x, weight = W[8, 3, 1, 1]);
            tensor<T, [1, {channels}, {height}, {width}]> b = {operation}(x = a, {argument});
            tensor<T, [1, 4, {height}, {width}]> y = conv(x = b, weight = W[4, {channels}, 1, 1]);"#
        );
        check(&x, &body, &["permute", "conv", "permute", "conv", "permute"]);
    }
}

#[test]
fn batch_norm_without_conv_fuses_elementwise() {
    check(
        &[1, 6, 5, 5],
        r#"tensor<T, [1, 6, 5, 5]> a = batch_norm(x = x, mean = W[6], variance = P[6], gamma = W[6]);
        tensor<T, [1, 6, 5, 5]> b = relu(x = a);
        tensor<T, [1, 6, 5, 5]> c = conv(x = b, weight = W[6, 6, 3, 3], pad_type = string("same"));
        tensor<T, [1, 6, 5, 5]> d = add(x = c, y = b);
        tensor<T, [1, 6, 5, 5]> e = max_pool(x = d, kernel_sizes = tensor<int32, [2]>([3, 3]), pad_type = string("same"));
        tensor<T, [1, 6, 5, 5]> f = batch_norm(x = e, mean = W[6], variance = P[6], beta = W[6]);
        tensor<T, [1, 6, 5, 5]> y = tanh(x = f);"#,
        &["mul+add+relu", "permute", "conv+add", "max_pool", "mul+add+tanh", "permute"],
    );
}

#[test]
fn cond_branches_read_either_layout() {
    for (relation, branch) in [("greater", "conv+relu"), ("less", "depthwise conv+add")] {
        let body = r#"tensor<T, [1, 4, 6, 6]> a = conv(x = x, weight = W[4, 4, 1, 1]);
        T s = reduce_sum(x = x, axes = tensor<int32, [4]>([0, 1, 2, 3]), keep_dims = bool(false));
        bool p = {relation}(x = s, y = T(0.0));
        tensor<T, [1, 4, 6, 6]> b = cond(pred = p)
        () {
            tensor<T, [1, 4, 6, 6]> i = conv(x = a, weight = W[4, 4, 3, 3], pad_type = string("same"));
            tensor<T, [1, 4, 6, 6]> j = relu(x = i);
        } -> (j)
        () {
            tensor<T, [1, 4, 6, 6]> k = conv(x = a, weight = W[4, 1, 3, 3], groups = int32(4), pad_type = string("same"));
            tensor<T, [1, 4, 6, 6]> l = add(x = k, y = x);
        } -> (l);
        tensor<T, [1, 4, 6, 6]> y = conv(x = b, weight = W[4, 4, 1, 1]);"#;
        let steps = [
            "permute",
            "conv",
            "reduce_sum",
            relation,
            branch,
            "permute",
            "cond",
            "permute",
            "conv",
            "permute",
        ];
        check(&[1, 4, 6, 6], &body.replace("{relation}", relation), &steps);
    }
}

#[test]
fn resize_ops_run_channels_last() {
    let cases = [
        (
            "upsample_bilinear",
            "scale_factor_height = fp32(2), scale_factor_width = fp32(1.5), align_corners = bool(true)",
            [12, 9],
        ),
        (
            "upsample_bilinear",
            "scale_factor_height = fp32(2), scale_factor_width = fp32(1.5), align_corners = bool(false)",
            [12, 9],
        ),
        (
            "upsample_nearest_neighbor",
            "scale_factor_height = int32(3), scale_factor_width = int32(2)",
            [18, 12],
        ),
        (
            "resize_bilinear",
            r#"target_size_height = int32(4), target_size_width = int32(11), sampling_mode = string("ALIGN_CORNERS")"#,
            [4, 11],
        ),
        (
            "resize_nearest_neighbor",
            "target_size_height = int32(13), target_size_width = int32(5)",
            [13, 5],
        ),
        (
            "resize",
            r#"shape = tensor<int32, [1]>([11]), resized_dims = uint32(1), sampling_mode = string("OFFSET_CORNERS")"#,
            [6, 11],
        ),
    ];
    for (operation, arguments, [rows, columns]) in cases {
        let body = format!(
            r#"tensor<T, [2, 5, 6, 6]> a = conv(x = x, weight = W[5, 4, 1, 1]);
            tensor<T, [2, 5, {rows}, {columns}]> b = {operation}(x = a, {arguments});
            tensor<T, [2, 3, {rows}, {columns}]> y = conv(x = b, weight = W[3, 5, 1, 1]);"#
        );
        check(&[2, 4, 6, 6], &body, &["permute", "conv", operation, "conv", "permute"]);
    }
}

#[test]
fn instance_norm_runs_channels_last() {
    check(
        &[2, 4, 6, 7],
        r#"tensor<T, [2, 5, 6, 7]> a = conv(x = x, weight = W[5, 4, 1, 1]);
        tensor<T, [2, 5, 6, 7]> b = instance_norm(x = a, gamma = W[5], beta = W[5], epsilon = T(0.125));
        tensor<T, [2, 5, 6, 7]> y = relu(x = b);"#,
        &["permute", "conv", "instance_norm", "relu", "permute"],
    );
}

#[test]
fn channel_shuffle_becomes_single_permute() {
    check(
        &[2, 6, 5, 3],
        r#"tensor<T, [2, 6, 5, 3]> a = conv(x = x, weight = W[6, 1, 3, 3], groups = int32(6), pad_type = string("same"));
        tensor<T, [2, 3, 2, 5, 3]> b = reshape(x = a, shape = tensor<int32, [5]>([2, 3, 2, 5, 3]));
        tensor<T, [2, 2, 3, 5, 3]> c = transpose(x = b, perm = tensor<int32, [5]>([0, 2, 1, 3, 4]));
        tensor<T, [2, 6, 5, 3]> d = reshape(x = c, shape = tensor<int32, [4]>([2, 6, 5, 3]));
        tensor<T, [2, 4, 5, 3]> y = conv(x = d, weight = W[4, 6, 1, 1]);"#,
        &["permute", "depthwise conv", "permute", "conv", "permute"],
    );
}
