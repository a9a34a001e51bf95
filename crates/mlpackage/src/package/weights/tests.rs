use std::path::Path;

use coremill_tensor::{Buffer, ByteSource, DType, LazyTensor};

use super::*;
use coremill_mil::ir::{
    Constant, ConstantData, Function, Op, OpId, Program, TensorType, WeightPlace,
};

const FILE: &str = "@model_path/weights/weight.bin";

fn place(offset: u64) -> WeightPlace {
    WeightPlace { file: FILE.into(), offset }
}

fn in_memory(bytes: Vec<u8>) -> WeightFiles {
    WeightFiles::in_memory([("weights/weight.bin".to_owned(), Buffer::from(bytes))])
}

/// A valid file with two records: 8 `fp16` elements and 5 `uint3` elements.
fn valid_file() -> Vec<u8> {
    let first = Record::of(DType::Fp16, 8, 64).expect("small");
    let second = Record::of(DType::UInt3, 5, 192).expect("small");
    let mut bytes = header(2).to_vec();
    bytes.extend(first.to_bytes());
    bytes.extend([1; 16]);
    bytes.resize(192, 0);
    bytes.extend(second.to_bytes());
    bytes.extend([2; 2]);
    bytes
}

fn set(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn reads_elements_at_referenced_offsets() {
    let files = in_memory(valid_file());
    let first = files.elements(&place(64), &TensorType::fixed(DType::Fp16, &[2, 4]));
    assert_eq!(first.expect("sound").as_bytes(), [1; 16]);
    let second = files.elements(&place(192), &TensorType::fixed(DType::UInt3, &[5]));
    assert_eq!(second.expect("sound").as_bytes(), [2; 2]);
    // A weight may be used twice, even with another shape.
    let again = files.elements(&place(64), &TensorType::fixed(DType::Fp16, &[8]));
    assert_eq!(again.expect("sound").as_bytes(), [1; 16]);
    assert_eq!(files.opened(), ["weights/weight.bin"]);
}

#[test]
fn record_metadata_round_trips_every_dtype() {
    for dtype in DType::ALL {
        let Some(code) = code(dtype) else {
            assert!(!belongs_in_file(dtype, 100, Opset::Ios26), "{dtype}");
            continue;
        };
        let record = Record::of(dtype, 11, 64).expect("small");
        assert_eq!(record.code, code);
        assert_eq!(
            record.bytes * 8 - record.padding_bits,
            11 * u64::from(dtype.bits().expect("bits"))
        );
        assert_eq!(Record::from_bytes(&record.to_bytes(), 64).expect("sound"), record);
    }
}

#[test]
fn belongs_in_file_checks_dtype_count_and_opset() {
    let cases = [
        (DType::Fp16, 10, Opset::Ios15, true),
        (DType::Fp16, 9, Opset::Ios26, false),
        (DType::UInt8, 10, Opset::Ios16, true),
        (DType::Int32, 100, Opset::Ios17, false),
        (DType::Int32, 100, Opset::Ios18, true),
        (DType::UInt4, 100, Opset::Ios18, true),
        (DType::Bool, 100, Opset::Ios26, false),
        (DType::Int64, 100, Opset::Ios26, false),
    ];
    for (dtype, count, opset, expected) in cases {
        assert_eq!(belongs_in_file(dtype, count, opset), expected, "{dtype} {count} {opset}");
    }
}

#[test]
fn rejects_corrupt_records_and_references() {
    type Damage = fn(&mut Vec<u8>);
    let fp16 = TensorType::fixed(DType::Fp16, &[8]);
    let cases: Vec<(&str, Damage, u64, TensorType, &str)> = vec![
        ("no header", |b| b.truncate(63), 64, fp16.clone(), "has a header of 64 bytes"),
        ("version", |b| b[4] = 1, 64, fp16.clone(), "must have version 2, got 1"),
        ("sentinel", |b| b[64] = 0, 64, fp16.clone(), "no weight record starts here"),
        ("between records", |_| {}, 128, fp16.clone(), "no weight record starts here"),
        ("misaligned", |_| {}, 65, fp16.clone(), "not a multiple of 64"),
        ("the header", |_| {}, 0, fp16.clone(), "inside the file's header"),
        ("outside", |_| {}, 1 << 20, fp16.clone(), "beyond the file's 258 bytes"),
        ("far outside", |_| {}, u64::MAX - 63, fp16.clone(), "beyond the file's 258 bytes"),
        ("cut record", |b| b.truncate(127), 64, fp16.clone(), "beyond the file's 127 bytes"),
        ("cut elements", |b| b.truncate(130), 64, fp16.clone(), "outside the file of 130 bytes"),
        ("size", |b| set(b, 72, 1 << 40), 64, fp16.clone(), "outside the file"),
        ("overflowing size", |b| set(b, 72, u64::MAX), 64, fp16.clone(), "outside the file"),
        ("data outside", |b| set(b, 80, 1 << 40), 64, fp16.clone(), "outside the file"),
        ("overflowing data", |b| set(b, 80, u64::MAX - 63), 64, fp16.clone(), "outside the file"),
        ("misaligned data", |b| set(b, 80, 136), 64, fp16.clone(), "not a multiple of 64"),
        ("data in the header", |b| set(b, 80, 0), 64, fp16.clone(), "outside the file"),
        ("data over its record", |b| set(b, 80, 64), 64, fp16.clone(), "overlap"),
        (
            "padding",
            |b| set(b, 216, 3),
            192,
            TensorType::fixed(DType::UInt3, &[5]),
            "2 bytes with 1 unused bits; the weight file holds 2 bytes with 3",
        ),
        (
            "type",
            |_| {},
            64,
            TensorType::fixed(DType::Int16, &[8]),
            "the weight file holds `fp16` elements",
        ),
        ("unknown type", |b| b[68] = 99, 64, fp16.clone(), "unknown code 99"),
        (
            "count",
            |_| {},
            64,
            TensorType::fixed(DType::Fp16, &[9]),
            "18 bytes with 0 unused bits; the weight file holds 16",
        ),
        (
            "count in bits",
            |_| {},
            192,
            TensorType::fixed(DType::UInt3, &[4]),
            "2 bytes with 4 unused bits; the weight file holds 2 bytes with 1",
        ),
        (
            "overflowing count",
            |_| {},
            64,
            TensorType::fixed(DType::Fp16, &[1 << 40, 1 << 40]),
            "cannot be determined",
        ),
    ];
    for (name, damage, offset, ty, message) in cases {
        let mut bytes = valid_file();
        damage(&mut bytes);
        let error = in_memory(bytes).elements(&place(offset), &ty).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Weights, "{name}");
        assert_eq!(error.file(), Some("weights/weight.bin"), "{name}");
        assert!(error.message().contains(message), "{name}: {error}");
    }
}

#[test]
fn rejects_overlapping_records_in_either_order() {
    let fp16 = TensorType::fixed(DType::Fp16, &[8]);
    // The elements of a record overlap the elements or the metadata of the other one.
    for (second_data, offsets) in [(128, [64, 192]), (128, [192, 64]), (64, [64, 192])] {
        let mut bytes = valid_file();
        let mut second = Record::of(DType::Fp16, 8, 192).expect("small");
        second.data = second_data;
        bytes[192..256].copy_from_slice(&second.to_bytes());
        bytes.resize(272, 0);
        let files = in_memory(bytes);
        files.elements(&place(offsets[0]), &fp16).expect("sound so far");
        let error = files.elements(&place(offsets[1]), &fp16).expect_err("overlap");
        assert!(error.message().contains("overlap"), "{error}");
    }
}

#[test]
fn rejects_weight_paths_outside_package() {
    let ty = TensorType::fixed(DType::Fp16, &[8]);
    for (name, message) in [
        ("weights/weight.bin", "is not under `@model_path/`"),
        ("/etc/passwd", "is not under `@model_path/`"),
        ("@model_path/../../secret", "has a component `.` or `..`"),
        ("@model_path//etc/passwd", "is absolute"),
        ("@model_path/", "is empty"),
        ("@model_path/a:b", "is not portable"),
        ("@model_path/other.bin", "the package has no weight file `other.bin`"),
    ] {
        let place = WeightPlace { file: name.into(), offset: 64 };
        let error = in_memory(valid_file()).elements(&place, &ty).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Weights, "{name}");
        assert!(error.message().contains(message), "{name}: {error}");
    }
}

#[test]
fn limits_number_of_open_weight_files() {
    let files = (0..200).map(|index| (format!("{index}.bin"), Buffer::from(valid_file())));
    let files = WeightFiles::in_memory(files);
    let ty = TensorType::fixed(DType::Fp16, &[8]);
    let read = |index: usize| {
        files.elements(
            &WeightPlace { file: format!("@model_path/{index}.bin").into(), offset: 64 },
            &ty,
        )
    };
    let refused = (0..200).find_map(|index| read(index).err()).expect("a limit");
    assert_eq!(refused.kind(), ErrorKind::Limit);
    read(0).expect("a file that is already open");
}

/// A program with these constants in one block.
fn program(constants: impl IntoIterator<Item = Constant>) -> Program {
    let mut function = Function::new("main", Opset::Ios18);
    for (index, constant) in constants.into_iter().enumerate() {
        let ty = constant.ty.clone();
        function.add_op(function.body, Op::constant(constant), [(format!("c{index}"), ty)]);
    }
    Program { functions: vec![function], ..Program::default() }
}

fn weight_places(program: &Program, layout: &Layout<'_>) -> Vec<WeightPlace> {
    let function = &program.functions[0];
    let ops = function.all_ops().filter_map(|(_, op)| match &op.attributes.get("val")?.data {
        ConstantData::Weight(weight) => Some(layout.place(weight).expect("a place")),
        _ => None,
    });
    ops.collect()
}

#[test]
fn deduplicates_weights_in_program_order() {
    let program = program([
        Constant::weight(DType::Int8, &[100], vec![1; 100]),
        Constant::weight(DType::Int8, &[100], vec![2; 100]),
        Constant::bytes(DType::Int8, &[2], vec![1; 2]),
        Constant::weight(DType::Int8, &[10, 10], vec![1; 100]),
        Constant::weight(DType::UInt8, &[100], vec![1; 100]),
        Constant::weight(DType::UInt4, &[199], vec![1; 100]),
        Constant::weight(DType::UInt4, &[200], vec![1; 100]),
        Constant::weight(DType::Int8, &[0], vec![]),
    ]);
    let layout = Layout::plan(&program).expect("sound");
    let offsets: Vec<u64> =
        weight_places(&program, &layout).iter().map(|place| place.offset).collect();
    assert_eq!(offsets, [64, 256, 64, 448, 640, 832, 1024]);

    let directory = tempfile::tempdir().expect("temporary directory");
    layout.write(directory.path()).expect("written");
    let bytes = std::fs::read(directory.path().join("weights/weight.bin")).expect("a file");
    assert_eq!(u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes")), 6);
    assert_eq!(bytes.len(), 1024 + 64);
    let mut again = program.clone();
    set_weight_places(&mut again, weight_places(&program, &layout));
    WeightFiles::in_directory(directory.path()).load(&mut again).expect("sound");
    assert_eq!(again, program);
}

/// Replaces the weights by weights at these locations whose data was not read.
fn set_weight_places(program: &mut Program, places: Vec<WeightPlace>) {
    let function = &mut program.functions[0];
    let mut places = places.into_iter();
    for index in 0..function.op_count() {
        let constant = function.op_mut(OpId::from_index(index)).attributes.get_mut("val");
        if let ConstantData::Weight(weight) = &mut constant.expect("a constant").data {
            (weight.data, weight.place) = (None, places.next());
        }
    }
}

/// A program whose weights were read from a file with these constants.
fn written(directory: &Path, constants: impl IntoIterator<Item = Constant>) -> Program {
    let mut program = program(constants);
    let layout = Layout::plan(&program).expect("sound");
    std::fs::create_dir_all(directory).expect("a directory");
    layout.write(directory).expect("written");
    let places = weight_places(&program, &layout);
    set_weight_places(&mut program, places);
    WeightFiles::in_directory(directory).load(&mut program).expect("sound");
    program
}

/// Lazily computed weights of several kinds; some are equal and some are large.
fn computed() -> Vec<(DType, Vec<u64>, Buffer)> {
    let numbers: Vec<f32> = (0..700_000).map(|at| (at % 4001) as f32 / 64.0 - 30.0).collect();
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let source = Buffer::from(bytes);
    let recipe = |shape: &[u64]| {
        LazyTensor::strided(source.clone(), DType::Fp32, shape, &[shape[1], 1], 0)
            .expect("within the source")
    };
    let cast = |recipe: LazyTensor| recipe.cast(DType::Fp16).expect("floats");
    let factors = |count: usize| (1..=count).map(|at| 1.0 / at as f32).collect::<Vec<_>>();
    let transposed = recipe(&[1000, 700]).permute(&[1, 0]).expect("a permutation");
    let scaled = recipe(&[300, 41]).scale(0, &factors(300)).expect("one factor per row");
    let rest = recipe(&[13, 50]).narrow(0, 9, 4).expect("within");
    let halves = vec![cast(recipe(&[9, 50])), cast(rest)];
    let joined = LazyTensor::concat(halves, 0).expect("equal row lengths");
    let recipes = [
        cast(recipe(&[1000, 700])),
        cast(transposed),
        cast(scaled),
        joined,
        cast(recipe(&[13, 50])),
        cast(recipe(&[1000, 700])),
        recipe(&[20, 30]),
        recipe(&[20, 30]).cast(DType::Int8).expect("numbers"),
    ];
    let buffers = recipes.into_iter().map(|it| (it.dtype(), it.shape().to_vec(), it.to_buffer()));
    buffers.collect()
}

#[test]
fn deferred_weights_write_same_bytes_as_in_memory() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let write = |name: &str, weights: Vec<(DType, Vec<u64>, Buffer)>| {
        let weights = weights.iter();
        let constants =
            weights.map(|(dtype, shape, data)| Constant::weight(*dtype, shape, data.clone()));
        let program = program(constants);
        let layout = Layout::plan(&program).expect("sound");
        let root = directory.path().join(name);
        std::fs::create_dir(&root).expect("a directory");
        let written = layout.write_and_hash(&root, false).expect("written");
        let bytes = std::fs::read(root.join("weights/weight.bin")).expect("a file");
        let hash = stream::hash(&Buffer::from(bytes.clone())).expect("in memory");
        assert_eq!(written[0].hash, hash);
        (bytes, weight_places(&program, &layout))
    };
    let deferred = computed();
    let (bytes, places) = write("deferred", deferred.clone());
    let still_deferred = deferred.iter().filter(|(_, _, data)| data.is_deferred()).count();
    assert_eq!(
        still_deferred,
        deferred.len() - 1,
        "all but the plain view of the source stay deferred"
    );
    let in_memory = |(dtype, shape, data): (DType, Vec<u64>, Buffer)| {
        (dtype, shape, Buffer::from(data.as_bytes().to_vec()))
    };
    let (expected, expected_places) =
        write("memory", computed().into_iter().map(in_memory).collect());
    assert!(bytes == expected);
    assert_eq!(places, expected_places);
    // Equal weights are stored once: 0 and 5 have equal recipes, 3 and 4 have different recipes for equal bytes.
    assert_eq!(bytes[0], 6);
    assert_eq!(places[0], places[5]);
    assert_eq!(places[3], places[4]);
}

#[test]
fn reports_weight_read_errors() {
    struct Broken;
    impl ByteSource for Broken {
        fn length(&self) -> usize {
            4 << 20
        }
        fn produce(&self, _: usize, _: &mut [u8]) -> std::io::Result<()> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    let broken = || Buffer::deferred(std::sync::Arc::new(Broken));
    let alone = program([Constant::weight(DType::Int8, &[4 << 20], broken())]);
    let layout = Layout::plan(&alone).expect("planning does not read a single weight");
    let directory = tempfile::tempdir().expect("temporary directory");
    let error = layout.write(directory.path()).expect_err("writing reads the weight");
    assert!(error.to_string().contains("the disk is gone"), "{error}");
    let pair = [broken(), broken()].map(|data| Constant::weight(DType::Int8, &[4 << 20], data));
    let pair = program(pair);
    let error =
        Layout::plan(&pair).err().expect("planning reads weights of equal size to compare them");
    assert!(error.to_string().contains("the disk is gone"), "{error}");
}

#[test]
fn preserves_fully_referenced_weight_file() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let root = directory.path();
    let constants = [1, 2, 3].map(|value| Constant::weight(DType::Int8, &[100], vec![value; 100]));
    let program = written(&root.join("a"), constants);
    // The order of the weights differs from that of a new layout, and the file has unreferenced bytes.
    let file = root.join("a/weights/weight.bin");
    let mut bytes = std::fs::read(&file).expect("a file");
    bytes.extend([9; 70]);
    std::fs::write(&file, &bytes).expect("a file");
    let mut reversed = program.clone();
    let mut order = weight_places(&program, &Layout::plan(&program).expect("sound"));
    order.reverse();
    set_weight_places(&mut reversed, order);
    WeightFiles::in_directory(root.join("a")).load(&mut reversed).expect("sound");
    let layout = Layout::plan(&reversed).expect("sound");
    std::fs::create_dir(root.join("b")).expect("a directory");
    layout.write(&root.join("b")).expect("written");
    assert_eq!(std::fs::read(root.join("b/weights/weight.bin")).expect("a file"), bytes);

    // With one weight fewer or one more, the file is written with a new layout.
    let body = reversed.functions[0].body;
    let last = reversed.functions[0].block_mut(body).ops.pop();
    let layout = Layout::plan(&reversed).expect("sound");
    std::fs::create_dir(root.join("c")).expect("a directory");
    layout.write(&root.join("c")).expect("written");
    let fewer = std::fs::read(root.join("c/weights/weight.bin")).expect("a file");
    assert_eq!((fewer[0], fewer.len()), (2, 256 + 64 + 100));
    assert_eq!(fewer[128], 3);
    reversed.functions[0].block_mut(body).ops.extend(last);
    let constant = Constant::weight(DType::Int8, &[100], vec![4; 100]);
    let ty = constant.ty.clone();
    reversed.functions[0].add_op(body, Op::constant(constant), [("more".into(), ty)]);
    let layout = Layout::plan(&reversed).expect("sound");
    std::fs::create_dir(root.join("d")).expect("a directory");
    layout.write(&root.join("d")).expect("written");
    assert_eq!(std::fs::read(root.join("d/weights/weight.bin")).expect("a file")[0], 4);
}

#[test]
fn keeps_weights_in_their_named_files() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let root = directory.path();
    let mut program =
        program([1, 2, 1].map(|value| Constant::weight(DType::Int8, &[100], vec![value; 100])));
    for (index, file) in ["@model_path/weights/a.bin", "@model_path/b.bin"].iter().enumerate() {
        let op = program.functions[0].op_mut(OpId::from_index(index));
        if let ConstantData::Weight(weight) = &mut op.attributes.get_mut("val").expect("val").data {
            weight.place = Some(WeightPlace { file: (*file).into(), offset: 640 });
        }
    }
    let layout = Layout::plan(&program).expect("sound");
    let paths: Vec<&str> = layout.paths().collect();
    assert_eq!(paths, ["b.bin", "weights/a.bin", "weights/weight.bin"]);
    layout.write(root).expect("written");
    let (mut again, places) = (program.clone(), weight_places(&program, &layout));
    assert!(places.iter().all(|place| place.offset == 64));
    set_weight_places(&mut again, places);
    let files = WeightFiles::in_directory(root);
    files.load(&mut again).expect("sound");
    assert_eq!(again, program);
    assert_eq!(files.opened(), paths);
}

#[test]
fn merges_same_named_weight_files() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let root = directory.path();
    let weight = |value: u8| Constant::weight(DType::Int8, &[100], vec![value; 100]);
    let mut left = written(&root.join("a"), [weight(1), weight(2)]);
    let mut right = written(&root.join("b"), [weight(2), weight(3)]);
    right.functions[0].name = "other".into();
    left.functions.append(&mut right.functions);
    let layout = Layout::plan(&left).expect("sound");
    std::fs::create_dir(root.join("c")).expect("a directory");
    layout.write(&root.join("c")).expect("written");
    let bytes = std::fs::read(root.join("c/weights/weight.bin")).expect("a file");
    assert_eq!(bytes[0], 3);
}

#[test]
fn rejects_weights_that_cannot_be_stored() {
    let cases = [
        (Constant::weight(DType::Fp16, &[16], vec![0; 31]), "requires 32 bytes, got 31"),
        (Constant::weight(DType::Bool, &[16], vec![0; 16]), "cannot be stored in a weight file"),
        (Constant::weight(DType::Int8, &[1 << 40, 1 << 40], vec![]), "cannot be stored in a"),
    ];
    for (constant, message) in cases {
        let program = program([constant]);
        let error = Layout::plan(&program).err().expect(message);
        assert_eq!(error.kind(), ErrorKind::Unwritable);
        assert!(error.message().contains(message), "{error}");
    }
}

/// Offsets beyond 4 GiB, in sparse files that need no disk space.
#[cfg(unix)]
#[test]
fn offsets_are_64_bits_wide() {
    use std::io::{Seek, SeekFrom, Write};

    let directory = tempfile::tempdir().expect("temporary directory");
    let (offset, length) = (5 << 30, 6 << 30);
    let path = directory.path().join("large.bin");
    let mut file = std::fs::File::create(&path).expect("a file");
    file.write_all(&header(2)).expect("written");
    let first = Record::of(DType::Int8, offset - 128, 64).expect("fits");
    file.write_all(&first.to_bytes()).expect("written");
    file.seek(SeekFrom::Start(offset)).expect("a place");
    let second = Record::of(DType::Int8, 1 << 30, offset).expect("fits");
    file.write_all(&second.to_bytes()).expect("written");
    file.write_all(&[7; 3]).expect("written");
    file.set_len(length + 64).expect("a length");
    drop(file);

    let files = WeightFiles::in_directory(directory.path());
    let place = |offset| WeightPlace { file: "@model_path/large.bin".into(), offset };
    let found = files.elements(&place(offset), &TensorType::fixed(DType::Int8, &[1 << 30]));
    let found = found.expect("sound");
    assert_eq!((found.len(), &found.as_bytes()[..4]), (1 << 30, &[7, 7, 7, 0][..]));
    let beyond = files.elements(&place(length), &TensorType::fixed(DType::Int8, &[1]));
    assert!(beyond.is_err());

    let first = files.elements(&place(64), &TensorType::fixed(DType::Int8, &[offset - 128]));
    let program = program([
        Constant::weight(DType::Int8, &[offset - 128], first.expect("sound")),
        Constant::weight(DType::Int8, &[3], vec![1; 3]),
    ]);
    let layout = Layout::plan(&program).expect("sound");
    assert_eq!(weight_places(&program, &layout)[1].offset, offset);
}

#[test]
fn ignores_padding_bits_of_whole_byte_dtypes() {
    // Writers that predate types narrower than a byte did not set the field.
    let mut bytes = valid_file();
    set(&mut bytes, 64 + 24, 0xdead_beef);
    let elements = in_memory(bytes).elements(&place(64), &TensorType::fixed(DType::Fp16, &[8]));
    assert_eq!(elements.expect("sound").as_bytes(), [1; 16]);
}
