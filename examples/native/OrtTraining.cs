// A part of onnxruntime's managed classes, with their names: for programs that are compiled without the package's assembly. The functions are read from the
// two tables by their positions, which never change.
using System;
using System.Buffers;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;

namespace Microsoft.ML.OnnxRuntime
{
    public class OnnxRuntimeException : Exception
    {
        internal OnnxRuntimeException(int code, string message) : base($"[ErrorCode:{code}] {message}") { }
    }

    static class Native
    {
        const uint Version = 19;

        internal delegate IntPtr GetTable(uint version);
        internal delegate void Release(IntPtr handle);
        internal delegate IntPtr Create(out IntPtr made);
        internal delegate IntPtr Get(IntPtr handle, out IntPtr found);
        internal delegate IntPtr GetFloat(IntPtr handle, out float found);
        internal delegate IntPtr Call(IntPtr handle);
        internal delegate IntPtr CallWithOptions(IntPtr handle, IntPtr options);
        internal delegate IntPtr CreateEnv(int level, byte[] name, out IntPtr made);
        internal delegate IntPtr CreateMemoryInfo(int allocator, int memory, out IntPtr made);
        internal delegate IntPtr CreateSession(IntPtr env, byte[] path, IntPtr options, out IntPtr made);
        internal delegate IntPtr CreateTensor(IntPtr memory, IntPtr data, UIntPtr size, long[] shape, UIntPtr rank, int type, out IntPtr made);
        internal delegate IntPtr RunSession(IntPtr session, IntPtr options, IntPtr[] inputNames, IntPtr[] inputs, UIntPtr inputCount, IntPtr[] outputNames,
                                            UIntPtr outputCount, IntPtr[] outputs);
        internal delegate IntPtr LoadCheckpoint(byte[] path, out IntPtr made);
        internal delegate IntPtr SaveCheckpoint(IntPtr state, byte[] path, [MarshalAs(UnmanagedType.I1)] bool includeOptimizerState);
        internal delegate IntPtr CreateTrainingSession(IntPtr env, IntPtr options, IntPtr state, byte[] train, byte[] eval, byte[] optimizer, out IntPtr made);
        internal delegate IntPtr Step(IntPtr session, IntPtr options, UIntPtr inputCount, IntPtr[] inputs, UIntPtr outputCount, IntPtr[] outputs);
        internal delegate IntPtr Schedule(IntPtr session, long warmup, long total, float rate);
        internal delegate IntPtr Export(IntPtr session, byte[] path, UIntPtr count, IntPtr[] names);
        internal delegate IntPtr AddFloat(IntPtr state, byte[] name, int type, ref float value);
        internal delegate IntPtr GetProperty(IntPtr state, byte[] name, IntPtr allocator, out int type, out IntPtr value);

        [DllImport("onnxruntime")]
        static extern IntPtr OrtGetApiBase();

        static readonly IntPtr api = At<GetTable>(OrtGetApiBase(), 0)(Version);
        static readonly IntPtr training = At<GetTable>(api, 219)(Version);

        internal static readonly IntPtr Env = Made((out IntPtr made) => Api<CreateEnv>(3)(2, Utf8("csharp"), out made));
        internal static readonly IntPtr Memory = Made((out IntPtr made) => Api<CreateMemoryInfo>(69)(1, 0, out made));
        internal static readonly IntPtr Allocator = Made(Api<Create>(78));

        static T At<T>(IntPtr table, int position)
        {
            return (T)(object)Marshal.GetDelegateForFunctionPointer(Marshal.ReadIntPtr(table, position * IntPtr.Size), typeof(T));
        }

        internal static T Api<T>(int position) { return At<T>(api, position); }

        internal static T Training<T>(int position) { return At<T>(training, position); }

        internal static byte[] Utf8(string text) { return Encoding.UTF8.GetBytes(text + "\0"); }

        internal static void Check(IntPtr status)
        {
            if (status == IntPtr.Zero)
                return;
            int code = Api<CodeOf>(1)(status);
            string message = Marshal.PtrToStringAnsi(Api<Call>(2)(status));
            Api<Release>(93)(status);
            throw new OnnxRuntimeException(code, message);
        }

        delegate int CodeOf(IntPtr status);

        /// <summary>Returns what a function has put into its last parameter.</summary>
        internal static IntPtr Made(Create create)
        {
            IntPtr made;
            Check(create(out made));
            return made;
        }

        /// <summary>Calls a function with names in memory that does not move.</summary>
        internal static void WithNames(IEnumerable<string> names, Func<IntPtr[], IntPtr> call)
        {
            var pins = names.Select(name => GCHandle.Alloc(Utf8(name), GCHandleType.Pinned)).ToArray();
            try
            {
                Check(call(pins.Select(pin => pin.AddrOfPinnedObject()).ToArray()));
            }
            finally
            {
                foreach (var pin in pins)
                    pin.Free();
            }
        }
    }

    /// <summary>An object of the library, released by Dispose.</summary>
    public abstract class OrtObject : IDisposable
    {
        internal IntPtr Handle;
        readonly Native.Release release;

        internal OrtObject(IntPtr handle, Native.Release release)
        {
            Handle = handle;
            this.release = release;
        }

        public virtual void Dispose()
        {
            release(Handle);
            Handle = IntPtr.Zero;
        }
    }

    public sealed class OrtMemoryInfo
    {
        public static readonly OrtMemoryInfo DefaultInstance = new OrtMemoryInfo();
    }

    public sealed class RunOptions : OrtObject
    {
        public RunOptions() : base(Native.Made(Native.Api<Native.Create>(39)), Native.Api<Native.Release>(97)) { }
    }

    public interface IDisposableReadOnlyCollection<T> : IReadOnlyList<T>, IDisposable { }

    sealed class Values : List<OrtValue>, IDisposableReadOnlyCollection<OrtValue>
    {
        internal Values(IEnumerable<IntPtr> handles) : base(handles.Select(handle => new OrtValue(handle))) { }

        public void Dispose() { ForEach(value => value.Dispose()); }
    }

    public sealed class OrtValue : OrtObject
    {
        MemoryHandle pinned;

        internal OrtValue(IntPtr handle) : base(handle, Native.Api<Native.Release>(96)) { }

        /// <summary>Makes a tensor over memory of the program: float or long.</summary>
        public static unsafe OrtValue CreateTensorValueFromMemory<T>(OrtMemoryInfo info, Memory<T> memory, long[] shape) where T : struct
        {
            var pin = memory.Pin();
            var size = (UIntPtr)(uint)(memory.Length * Marshal.SizeOf(typeof(T)));
            var handle = Native.Made((out IntPtr made) => Native.Api<Native.CreateTensor>(49)(
                Native.Memory, (IntPtr)pin.Pointer, size, shape, (UIntPtr)(uint)shape.Length, typeof(T) == typeof(float) ? 1 : 7, out made));
            return new OrtValue(handle) { pinned = pin };
        }

        public unsafe ReadOnlySpan<T> GetTensorDataAsSpan<T>() where T : struct
        {
            var info = Native.Made((out IntPtr found) => Native.Api<Native.Get>(65)(Handle, out found));
            var count = Native.Made((out IntPtr found) => Native.Api<Native.Get>(64)(info, out found));
            Native.Api<Native.Release>(99)(info);
            var data = Native.Made((out IntPtr found) => Native.Api<Native.Get>(51)(Handle, out found));
            return new ReadOnlySpan<T>((void*)data, (int)count);
        }

        public override void Dispose()
        {
            base.Dispose();
            pinned.Dispose();
        }
    }

    public sealed class InferenceSession : OrtObject
    {
        public InferenceSession(string path)
            : base(Native.Made((out IntPtr made) => Native.Api<Native.CreateSession>(7)(Native.Env, Native.Utf8(path), IntPtr.Zero, out made)),
                   Native.Api<Native.Release>(95)) { }

        public IDisposableReadOnlyCollection<OrtValue> Run(RunOptions options, IReadOnlyDictionary<string, OrtValue> inputs, IReadOnlyCollection<string> outputs)
        {
            var made = new IntPtr[outputs.Count];
            var given = inputs.Values.Select(value => value.Handle).ToArray();
            Native.WithNames(inputs.Keys.Concat(outputs), names => Native.Api<Native.RunSession>(9)(
                Handle, options.Handle, names.Take(given.Length).ToArray(), given, (UIntPtr)(uint)given.Length, names.Skip(given.Length).ToArray(),
                (UIntPtr)(uint)made.Length, made));
            return new Values(made);
        }
    }

    public sealed class CheckpointState : OrtObject
    {
        CheckpointState(IntPtr handle) : base(handle, Native.Training<Native.Release>(20)) { }

        public static CheckpointState LoadCheckpoint(string path)
        {
            return new CheckpointState(Native.Made((out IntPtr made) => Native.Training<Native.LoadCheckpoint>(0)(Native.Utf8(path), out made)));
        }

        public static void SaveCheckpoint(CheckpointState state, string path, bool includeOptimizerState = false)
        {
            Native.Check(Native.Training<Native.SaveCheckpoint>(1)(state.Handle, Native.Utf8(path), includeOptimizerState));
        }

        public void AddProperty(string name, float value)
        {
            Native.Check(Native.Training<Native.AddFloat>(27)(Handle, Native.Utf8(name), 1, ref value));
        }

        /// <summary>Returns a property: long, float or string.</summary>
        public object GetProperty(string name)
        {
            int type;
            IntPtr found;
            Native.Check(Native.Training<Native.GetProperty>(28)(Handle, Native.Utf8(name), Native.Allocator, out type, out found));
            object value = type == 0 ? Marshal.ReadInt64(found) : type == 1 ? (object)Marshal.PtrToStructure<float>(found) : Marshal.PtrToStringAnsi(found);
            Native.Check(Native.Api<Native.CallWithOptions>(76)(Native.Allocator, found));
            return value;
        }
    }

    public sealed class TrainingSession : OrtObject
    {
        public TrainingSession(CheckpointState state, string train, string eval, string optimizer)
            : base(Native.Made((out IntPtr made) => Native.Training<Native.CreateTrainingSession>(2)(
                       Native.Env, Options, state.Handle, Native.Utf8(train), Native.Utf8(eval), Native.Utf8(optimizer), out made)),
                   Native.Training<Native.Release>(19)) { }

        static readonly IntPtr Options = Native.Made(Native.Api<Native.Create>(10));

        IDisposableReadOnlyCollection<OrtValue> Run(int step, int outputCount, IReadOnlyCollection<OrtValue> inputs)
        {
            var count = Native.Made((out IntPtr found) => Native.Training<Native.Get>(outputCount)(Handle, out found));
            var made = new IntPtr[(int)count];
            var given = inputs.Select(value => value.Handle).ToArray();
            Native.Check(Native.Training<Native.Step>(step)(Handle, IntPtr.Zero, (UIntPtr)(uint)given.Length, given, (UIntPtr)(uint)made.Length, made));
            return new Values(made);
        }

        public IDisposableReadOnlyCollection<OrtValue> TrainStep(IReadOnlyCollection<OrtValue> inputs) { return Run(9, 4, inputs); }

        public IDisposableReadOnlyCollection<OrtValue> EvalStep(IReadOnlyCollection<OrtValue> inputs) { return Run(10, 5, inputs); }

        public void LazyResetGrad() { Native.Check(Native.Training<Native.Call>(8)(Handle)); }

        public void OptimizerStep() { Native.Check(Native.Training<Native.CallWithOptions>(13)(Handle, IntPtr.Zero)); }

        public void SchedulerStep() { Native.Check(Native.Training<Native.Call>(15)(Handle)); }

        public void RegisterLinearLRScheduler(long warmup, long total, float rate)
        {
            Native.Check(Native.Training<Native.Schedule>(14)(Handle, warmup, total, rate));
        }

        public float GetLearningRate()
        {
            float rate;
            Native.Check(Native.Training<Native.GetFloat>(12)(Handle, out rate));
            return rate;
        }

        public void ExportModelForInferencing(string path, IReadOnlyCollection<string> outputs)
        {
            Native.WithNames(outputs, names => Native.Training<Native.Export>(21)(Handle, Native.Utf8(path), (UIntPtr)(uint)names.Length, names));
        }
    }
}
