use super::check::check;

#[test]
fn pooling_of_all_windows_runs_channels_last() {
    for (pool, exclude) in [
        ("max_pool", ""),
        ("avg_pool", "exclude_padding_from_average = bool(false), "),
        ("avg_pool", "exclude_padding_from_average = bool(true), "),
        ("l2_pool", ""),
    ] {
        for (pads, rounds_up, [rows, columns]) in [
            (r#"pad_type = string("valid")"#, false, [4, 6]),
            (r#"pad_type = string("same")"#, false, [5, 6]),
            (r#"pad_type = string("same_lower")"#, false, [5, 6]),
            (
                r#"pad_type = string("custom"), pad = tensor<int32, [4]>([1, 0, 0, 1])"#,
                false,
                [5, 6],
            ),
            (
                r#"pad_type = string("custom"), pad = tensor<int32, [4]>([1, 1, 0, 0])"#,
                true,
                [6, 6],
            ),
        ] {
            let body = format!(
                r#"tensor<T, [2, 5, {rows}, {columns}]> y = {pool}({exclude}x = x,
                    kernel_sizes = tensor<int32, [2]>([3, 2]), strides = tensor<int32, [2]>([2, 2]), {pads},
                    ceil_mode = bool({rounds_up}));"#
            );
            check(&[2, 5, 10, 12], &body, &["permute", pool, "permute"]);
        }
    }
}

#[test]
fn pooling_handles_one_and_three_dimensions() {
    check(
        &[2, 5, 12],
        r#"tensor<T, [2, 5, 6]> y = max_pool(x = x, kernel_sizes = tensor<int32, [1]>([2]),
            strides = tensor<int32, [1]>([2]), pad_type = string("valid"));"#,
        &["permute", "max_pool", "permute"],
    );
    check(
        &[1, 5, 4, 6, 8],
        r#"tensor<T, [1, 5, 2, 6, 3]> y = avg_pool(x = x, kernel_sizes = tensor<int32, [3]>([2, 1, 3]),
            strides = tensor<int32, [3]>([2, 1, 2]), pad_type = string("valid"));"#,
        &["permute", "avg_pool", "permute"],
    );
}

#[test]
fn global_reduce_mean_runs_channels_last() {
    for keeps in [true, false] {
        let shape = if keeps { "2, 8, 1, 1" } else { "2, 8" };
        let body = format!(
            r#"tensor<T, [2, 8, 9, 11]> a = conv(x = x, weight = W[8, 3, 1, 1]);
            tensor<T, [{shape}]> y = reduce_mean(x = a, axes = tensor<int32, [2]>([2, 3]), keep_dims = bool({keeps}));"#
        );
        check(&[2, 3, 9, 11], &body, &["permute", "conv", "reduce_mean"]);
    }
}
