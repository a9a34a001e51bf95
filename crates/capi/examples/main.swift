// Runs a method of a model with zeros as inputs, and prints the sizes of the outputs: `Run MODEL [METHOD]`.
//
// MODEL is an ExecuTorch program (.pte), a package (.mlpackage) or a compiled model (.mlmodelc). An app finds
// it in its bundle: `Bundle.main.path(forResource: "model", ofType: "pte")`.

import Coremill
import CoremillC
import Foundation

/// Prints the library's error message and exits if a call failed.
func require(_ status: Int32, _ what: String) {
    guard status == 0 else {
        print("error: \(what): \(String(cString: coremill_error_message()))")
        exit(1)
    }
}

/// The sizes of a tensor. Arrays of C are tuples in Swift.
func extents(_ tensor: CoremillTensor) -> [UInt64] {
    withUnsafeBytes(of: tensor.sizes) { bytes in
        Array(bytes.bindMemory(to: UInt64.self).prefix(Int(tensor.rank)))
    }
}

/// Zeros for each input, or memory for each output, with the largest possible sizes. Inputs without a largest
/// size have their smallest size.
func tensors(_ method: CoremillMethod, outputs: Bool) -> [CoremillTensor] {
    let kind: Int32 = outputs ? 1 : 0
    var count = 0
    require(coremill_method_port_count(method, kind, &count), "count")
    return (0..<count).map { index in
        var port = CoremillPort()
        require(coremill_method_port(method, kind, index, &port), "describe")
        var tensor = CoremillTensor()
        tensor.scalar_type = port.scalar_type
        tensor.rank = port.rank
        tensor.sizes = port.largest
        if !outputs && extents(tensor).contains(UInt64.max) {
            tensor.sizes = port.least
        }
        guard !extents(tensor).contains(UInt64.max) else {
            print("error: an output has no largest size: pass `resize` in `CoremillHooks`")
            exit(1)
        }
        // An element has at most eight bytes.
        tensor.length = extents(tensor).reduce(8) { $0 * Int($1) }
        tensor.data = calloc(tensor.length, 1)
        return tensor
    }
}

guard CommandLine.arguments.count > 1 else {
    print("usage: Run MODEL [METHOD]")
    exit(2)
}
// A package or compiled model is prepared first: in an app, while the CPU and GPU answer predictions.
if !CommandLine.arguments[1].hasSuffix(".pte") {
    do {
        let prewarmed = try PrewarmedModel(path: CommandLine.arguments[1])
        for await progress in prewarmed.progressUpdates() {
            print("\(progress.stage): \(progress.done) of \(progress.total)")
        }
        try await prewarmed.ready()
        let isCached = try PrewarmedModel.isCached(path: CommandLine.arguments[1])
        print("compiled and cached: \(isCached)")
    } catch {
        print("error: \(error)")
        exit(1)
    }
}
var model = CoremillModel()
require(coremill_model_load_file(CommandLine.arguments[1], nil, 0, &model), "load")
var method = CoremillMethod()
let name = CommandLine.arguments.count > 2 ? CommandLine.arguments[2] : nil
require(coremill_method_load(model, name, &method), "load the method")
// The method keeps everything that it needs from the model.
require(coremill_model_free(model), "free the model")

let inputs = tensors(method, outputs: false)
var outputs = tensors(method, outputs: true)
require(coremill_method_execute(method, inputs, inputs.count, &outputs, outputs.count, nil), "run")
for output in outputs {
    print("output: \(extents(output))")
}
for tensor in inputs + outputs {
    free(tensor.data)
}
require(coremill_method_free(method), "free")
