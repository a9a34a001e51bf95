use super::check::check;

/// An attention with three heads, whose keys and values are concatenated from `x` and its last
/// rows. `after` computes the result `y`.
fn body(queries: usize, mask: &str, after: &str) -> String {
    format!(
        r#"tensor<T, [2, 3, {queries}, 8]> q = slice_by_size(x = x, begin = tensor<int32, [4]>([0, 0, 1, 0]),
                size = tensor<int32, [4]>([2, 3, {queries}, 8]));
            tensor<T, [2, 3, 1, 8]> last = slice_by_size(x = x, begin = tensor<int32, [4]>([0, 0, 8, 0]),
                size = tensor<int32, [4]>([2, 3, 1, 8]));
            tensor<T, [2, 3, 9, 8]> double = mul(x = x, y = T(2));
            tensor<T, [2, 3, 10, 8]> k = concat(values = (double, last), axis = int32(2), interleave = bool(false));
            tensor<T, [2, 3, 10, 8]> v = concat(values = (x, last), axis = int32(-2), interleave = bool(false));
            tensor<T, [2, 3, {queries}, 8]> o = scaled_dot_product_attention(query = q, key = k, value = v{mask});
            {after}"#
    )
}

#[test]
fn attention_fuses_kv_concat_for_few_queries() {
    for (queries, joins) in [(1, true), (3, true), (5, false)] {
        let attends: &[&str] = match joins {
            true => &["mul", "concat+attention"],
            false => &["slice_by_size", "mul", "concat", "concat", "attention"],
        };
        for mask in ["".to_owned(), format!(", attn_mask = W[{queries}, 10]")] {
            let steps = [attends, &["concat"]].concat();
            // Other operations read the concatenated keys and values later.
            let after = format!(
                "tensor<T, [2, 3, {}, 8]> y = concat(values = (o, k, v), axis = int32(2), interleave = bool(false));",
                queries + 20
            );
            check(&[2, 3, 9, 8], &body(queries, &mask, &after), &steps);
        }
    }
}

#[test]
fn concat_read_before_attention_is_not_fused() {
    let after = "tensor<T, [2, 3, 1, 8]> y = add(x = o, y = most);";
    let early = "tensor<T, [2, 3, 1, 8]> most = reduce_max(x = k, axes = tensor<int32, [1]>([2]), keep_dims = bool(true));
            tensor<T, [2, 3, 10, 8]> v = ";
    let body = body(1, "", after).replace("tensor<T, [2, 3, 10, 8]> v = ", early);
    let steps = ["slice_by_size", "mul", "concat", "reduce_max", "concat", "attention", "add"];
    check(&[2, 3, 9, 8], &body, &steps);
}
