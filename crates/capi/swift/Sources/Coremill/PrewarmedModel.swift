// Background preparation of Core ML models.

import CoremillC
import Foundation

/// An error of the library, with a suggested fix if there is one.
public struct CoremillError: Error, CustomStringConvertible {
    /// The status of the C interface.
    public let status: Int32
    public let message: String
    public let hint: String?

    public var description: String { hint.map { "\(message); hint: \($0)" } ?? message }

    /// The error of this thread's last failed call.
    init(status: Int32) {
        self.status = status
        message = String(cString: coremill_error_message())
        hint = coremill_error_hint().map { String(cString: $0) }
    }

    /// Whether the preparation was cancelled.
    public var isCancellation: Bool { status == Status.cancelled }
}

/// Status numbers of the C interface, `CoremillStatus`.
enum Status {
    static let ok: Int32 = 0
    static let cancelled: Int32 = 8
}

/// Throws the library's error if a call failed.
func check(_ status: Int32) throws {
    guard status == Status.ok else { throw CoremillError(status: status) }
}

/// Compute units of Core ML.
public enum ComputeUnits: String, Sendable {
    case cpuOnly = "cpu_only"
    case cpuAndGPU = "cpu_and_gpu"
    case cpuAndNeuralEngine = "cpu_and_ne"
    case all = "all"

    init?(number: Int32) {
        switch number {
        case 1: self = .cpuOnly
        case 2: self = .cpuAndGPU
        case 3: self = .cpuAndNeuralEngine
        case 4: self = .all
        default: return nil
        }
    }
}

/// A model that is prepared in the background: the CPU and GPU answer predictions until the requested compute units
/// are ready. Releasing it cancels the preparation.
///
/// ```swift
/// let model = try PrewarmedModel(path: path)
/// for await progress in model.progressUpdates() {
///     print(progress.stage, "\(progress.done) of \(progress.total)")
/// }
/// try await model.ready()
/// ```
public final class PrewarmedModel: @unchecked Sendable {
    /// Step of a preparation.
    public enum Stage: Int32, Sendable {
        case compiling, loadingFallback, loading, predicting, ready, cancelled, failed

        /// Whether the preparation is over.
        public var isFinal: Bool { rawValue >= Stage.ready.rawValue }
    }

    /// Progress of a preparation.
    public struct Progress: Sendable, Equatable {
        public let stage: Stage
        /// Number of functions loaded, or predictions run, in this step.
        public let done: Int
        /// Number of functions or predictions in this step.
        public let total: Int
        /// Compute units of the model that answers predictions; `nil` until one is loaded.
        public let answering: ComputeUnits?

        init(_ progress: CoremillPrewarmProgress) {
            stage = Stage(rawValue: progress.stage) ?? .failed
            done = progress.done
            total = progress.total
            answering = ComputeUnits(number: progress.answering)
        }
    }

    /// Longest wait of a thread, in milliseconds. Between waits, a released model ends its waiting tasks.
    private static let step: UInt64 = 250

    private let handle: CoremillPrewarm

    /// Starts to prepare a package (`.mlpackage`) or a compiled model (`.mlmodelc`).
    ///
    /// - Parameters:
    ///   - functions: the functions to prepare; all functions if empty.
    ///   - computeUnits: the compute units to prepare.
    ///   - cacheDirectory: the directory of compiled models; `nil` selects `Library/Caches/coremill`.
    public init(
        path: String,
        functions: [String] = [],
        computeUnits: ComputeUnits = .all,
        cacheDirectory: String? = nil
    ) throws {
        var handle = CoremillPrewarm()
        try withOptions(computeUnits, cacheDirectory) { options, count in
            let names = functions.map { strdup($0) }
            defer { names.forEach { free($0) } }
            let pointers: [UnsafePointer<CChar>?] = names.map { $0.map { UnsafePointer($0) } }
            try check(
                coremill_prewarm_start(path, pointers, pointers.count, options, count, &handle))
        }
        self.handle = handle
    }

    deinit {
        coremill_prewarm_free(handle)
    }

    /// Whether a model is compiled and cached for these compute units and the current build of the system.
    public static func isCached(
        path: String,
        computeUnits: ComputeUnits = .all,
        cacheDirectory: String? = nil
    ) throws -> Bool {
        var cached: Int32 = 0
        try withOptions(computeUnits, cacheDirectory) { options, count in
            try check(coremill_prewarm_is_cached(path, options, count, &cached))
        }
        return cached == 1
    }

    /// The current progress.
    public var progress: Progress {
        var progress = CoremillPrewarmProgress()
        // It cannot fail for a valid handle.
        _ = coremill_prewarm_progress(handle, &progress)
        return Progress(progress)
    }

    /// Each change of the progress, from the current one to the last.
    public func progressUpdates() -> AsyncStream<Progress> {
        AsyncStream { continuation in
            let thread = Thread { [weak self] in
                var seen = CoremillPrewarmProgress()
                var last: Progress?
                while let model = self {
                    guard
                        coremill_prewarm_wait_for_change(
                            model.handle, last == nil ? 0 : PrewarmedModel.step, &seen)
                            == Status.ok
                    else { break }
                    let progress = Progress(seen)
                    if progress != last {
                        last = progress
                        if case .terminated = continuation.yield(progress) { break }
                    }
                    if progress.stage.isFinal { break }
                }
                continuation.finish()
            }
            thread.name = "coremill-progress"
            thread.start()
        }
    }

    /// Waits until the requested compute units answer predictions. Throws the error of a failed step. Cancelling the
    /// task ends the wait, not the preparation.
    public func ready() async throws {
        for await progress in progressUpdates() where progress.stage.isFinal {
            break
        }
        try Task.checkCancellation()
        try check(coremill_prewarm_wait(handle, 0))
    }

    /// Cancels the preparation. A loaded model for the CPU and GPU continues to answer predictions.
    public func cancel() {
        coremill_prewarm_cancel(handle)
    }

    /// Runs a function on the model that currently answers predictions, and waits until one is loaded. Inputs and outputs
    /// are in the order of the model's ports. Returns the compute units of the model that answered.
    @discardableResult
    public func predict(
        function: String? = nil,
        inputs: [CoremillTensor],
        outputs: inout [CoremillTensor]
    ) throws -> ComputeUnits {
        var units: Int32 = 0
        let count = outputs.count
        try check(
            coremill_prewarm_execute(
                handle, function, inputs, inputs.count, &outputs, count, &units))
        return ComputeUnits(number: units) ?? .all
    }
}

/// Calls a function with the options of the C interface.
private func withOptions<Value>(
    _ computeUnits: ComputeUnits,
    _ cacheDirectory: String?,
    _ call: (UnsafePointer<CoremillOption>, Int) throws -> Value
) rethrows -> Value {
    var pairs = [("compute_unit", computeUnits.rawValue)]
    if let cacheDirectory { pairs.append(("cache_dir", cacheDirectory)) }
    let texts = pairs.map { (strdup($0.0), strdup($0.1)) }
    defer {
        for (key, value) in texts {
            free(key)
            free(value)
        }
    }
    let options = texts.map { CoremillOption(key: $0.0, value: $0.1) }
    return try options.withUnsafeBufferPointer { buffer in
        // There is at least one option.
        try call(buffer.baseAddress!, buffer.count)
    }
}
