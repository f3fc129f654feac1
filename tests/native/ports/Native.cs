// The function tables of the native library for C#: a delegate per slot that the port calls, made from the pointers of the tables as the published managed
// binding makes them. Every slot is read when the class is loaded; a null one is an error.
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Text;

sealed class OrtException : Exception
{
    public readonly int Code;

    public OrtException(int code, string message) : base(message) { Code = code; }
}

// Delegates by their parameters: P pointer, S UTF-8 string or bytes, I int, L int64, N size_t, F float, B bool, A array; Out parameters last.
delegate IntPtr Status();
delegate void Free(IntPtr handle);
delegate int CodeOf(IntPtr status);
delegate IntPtr P(IntPtr handle);
delegate IntPtr PP(IntPtr handle, IntPtr other);
delegate IntPtr PI(IntPtr handle, int value);
delegate IntPtr PF(IntPtr handle, float value);
delegate IntPtr PS(IntPtr handle, byte[] text);
delegate IntPtr PSS(IntPtr handle, byte[] key, byte[] value);
delegate IntPtr PSP(IntPtr handle, byte[] text, IntPtr other);
delegate IntPtr PSB(IntPtr handle, byte[] text, bool flag);
delegate IntPtr PPB(IntPtr handle, IntPtr other, bool flag);
delegate IntPtr PLLF(IntPtr handle, long first, long second, float value);
delegate IntPtr PSIP(IntPtr handle, byte[] text, int type, IntPtr value);
delegate IntPtr PSNA(IntPtr handle, byte[] text, UIntPtr count, IntPtr[] texts);
delegate IntPtr PSPPN(IntPtr handle, byte[] text, IntPtr keys, IntPtr values, UIntPtr count);
delegate IntPtr PAN(IntPtr handle, long[] sizes, UIntPtr count);
delegate IntPtr Seed(long seed);
delegate IntPtr Table(uint version);
delegate IntPtr OutP(out IntPtr made);
delegate IntPtr IIOutP(int first, int second, out IntPtr made);
delegate IntPtr ISOutP(int level, byte[] text, out IntPtr made);
delegate IntPtr SOutP(byte[] text, out IntPtr made);
delegate IntPtr SNOutP(byte[] bytes, UIntPtr size, out IntPtr made);
delegate IntPtr POutP(IntPtr handle, out IntPtr made);
delegate IntPtr POutI(IntPtr handle, out int value);
delegate IntPtr POutF(IntPtr handle, out float value);
delegate IntPtr POutN(IntPtr handle, out UIntPtr value);
delegate IntPtr POutNB(IntPtr handle, out UIntPtr value, bool flag);
delegate IntPtr PSOutP(IntPtr handle, byte[] text, out IntPtr made);
delegate IntPtr PSPOutP(IntPtr handle, byte[] text, IntPtr allocator, out IntPtr made);
delegate IntPtr PSPOutIP(IntPtr handle, byte[] text, IntPtr allocator, out int type, out IntPtr made);
delegate IntPtr PNPOutP(IntPtr handle, UIntPtr index, IntPtr allocator, out IntPtr made);
delegate IntPtr PPNANIOutP(IntPtr info, IntPtr data, UIntPtr bytes, long[] shape, UIntPtr rank, int type, out IntPtr made);
delegate IntPtr PPPSSSOutP(IntPtr env, IntPtr options, IntPtr state, byte[] train, byte[] eval, byte[] optimizer, out IntPtr made);
delegate IntPtr PPPSNSNSNOutP(IntPtr env, IntPtr options, IntPtr state, byte[] train, UIntPtr trainSize, byte[] eval, UIntPtr evalSize, byte[] optimizer,
                              UIntPtr optimizerSize, out IntPtr made);
delegate IntPtr Step(IntPtr session, IntPtr options, UIntPtr inputCount, IntPtr[] inputs, UIntPtr outputCount, [In, Out] IntPtr[] outputs);

static class Native
{
    const int Slots = 280, TrainingSlots = 33;
    const uint Version = 19;

    [StructLayout(LayoutKind.Sequential)]
    struct OrtApiBase
    {
        public IntPtr GetApi;
        public IntPtr GetVersionString;
    }

    [DllImport("libonnxruntime", CharSet = CharSet.Ansi)]
    static extern IntPtr OrtGetApiBase();

    static readonly IntPtr[] Ort = Read(Get<Table>(Marshal.PtrToStructure<OrtApiBase>(OrtGetApiBase()).GetApi)(Version), Slots);
    static readonly IntPtr[] Training = Read(Get<Table>(Ort[219])(Version), TrainingSlots);

    static T Get<T>(IntPtr function) => Marshal.GetDelegateForFunctionPointer<T>(function);

    static IntPtr[] Read(IntPtr table, int slots)
    {
        var found = new IntPtr[slots];
        Marshal.Copy(table, found, 0, slots);
        if (Array.IndexOf(found, IntPtr.Zero) >= 0)
            throw new InvalidOperationException("slot " + Array.IndexOf(found, IntPtr.Zero) + " of a table is null");
        return found;
    }

    public static readonly CodeOf GetErrorCode = Get<CodeOf>(Ort[1]);
    public static readonly P GetErrorMessage = Get<P>(Ort[2]);
    public static readonly ISOutP CreateEnv = Get<ISOutP>(Ort[3]);
    public static readonly OutP CreateSessionOptions = Get<OutP>(Ort[10]);
    public static readonly PI SetSessionLogSeverityLevel = Get<PI>(Ort[22]), SetIntraOpNumThreads = Get<PI>(Ort[24]);
    public static readonly OutP CreateRunOptions = Get<OutP>(Ort[39]);
    public static readonly P RunOptionsSetTerminate = Get<P>(Ort[46]), RunOptionsUnsetTerminate = Get<P>(Ort[47]);
    public static readonly PPNANIOutP CreateTensorWithDataAsOrtValue = Get<PPNANIOutP>(Ort[49]);
    public static readonly POutI IsTensor = Get<POutI>(Ort[50]);
    public static readonly POutP GetTensorMutableData = Get<POutP>(Ort[51]);
    public static readonly POutI GetTensorElementType = Get<POutI>(Ort[60]);
    public static readonly POutN GetDimensionsCount = Get<POutN>(Ort[61]);
    public static readonly PAN GetDimensions = Get<PAN>(Ort[62]);
    public static readonly POutN GetTensorShapeElementCount = Get<POutN>(Ort[64]);
    public static readonly POutP GetTensorTypeAndShape = Get<POutP>(Ort[65]);
    public static readonly IIOutP CreateCpuMemoryInfo = Get<IIOutP>(Ort[69]);
    public static readonly PP AllocatorFree = Get<PP>(Ort[76]);
    public static readonly OutP GetAllocatorWithDefaultOptions = Get<OutP>(Ort[78]);
    public static readonly Free ReleaseEnv = Get<Free>(Ort[92]), ReleaseStatus = Get<Free>(Ort[93]), ReleaseMemoryInfo = Get<Free>(Ort[94]);
    public static readonly Free ReleaseValue = Get<Free>(Ort[96]), ReleaseRunOptions = Get<Free>(Ort[97]);
    public static readonly Free ReleaseTensorTypeAndShapeInfo = Get<Free>(Ort[99]), ReleaseSessionOptions = Get<Free>(Ort[100]);
    public static readonly PSS AddSessionConfigEntry = Get<PSS>(Ort[130]);
    public static readonly PSPPN SessionOptionsAppendExecutionProvider = Get<PSPPN>(Ort[216]);
    public static readonly PS RegisterCustomOpsLibrary = Get<PS>(Ort[228]);

    public static readonly SOutP LoadCheckpoint = Get<SOutP>(Training[0]);
    public static readonly PSB SaveCheckpoint = Get<PSB>(Training[1]);
    public static readonly PPPSSSOutP CreateTrainingSession = Get<PPPSSSOutP>(Training[2]);
    public static readonly PPPSNSNSNOutP CreateTrainingSessionFromBuffer = Get<PPPSNSNSNOutP>(Training[3]);
    public static readonly POutN TrainingOutputCount = Get<POutN>(Training[4]), EvalOutputCount = Get<POutN>(Training[5]);
    public static readonly PNPOutP TrainingOutputName = Get<PNPOutP>(Training[6]), EvalOutputName = Get<PNPOutP>(Training[7]);
    public static readonly P LazyResetGrad = Get<P>(Training[8]);
    public static readonly Step TrainStep = Get<Step>(Training[9]), EvalStep = Get<Step>(Training[10]);
    public static readonly PF SetLearningRate = Get<PF>(Training[11]);
    public static readonly POutF GetLearningRate = Get<POutF>(Training[12]);
    public static readonly PP OptimizerStep = Get<PP>(Training[13]);
    public static readonly PLLF RegisterLinearLRScheduler = Get<PLLF>(Training[14]);
    public static readonly P SchedulerStep = Get<P>(Training[15]);
    public static readonly POutNB GetParametersSize = Get<POutNB>(Training[16]);
    public static readonly PPB CopyParametersToBuffer = Get<PPB>(Training[17]), CopyBufferToParameters = Get<PPB>(Training[18]);
    public static readonly Free ReleaseTrainingSession = Get<Free>(Training[19]), ReleaseCheckpointState = Get<Free>(Training[20]);
    public static readonly PSNA ExportModelForInferencing = Get<PSNA>(Training[21]);
    public static readonly Seed SetSeed = Get<Seed>(Training[22]);
    public static readonly POutN TrainingInputCount = Get<POutN>(Training[23]), EvalInputCount = Get<POutN>(Training[24]);
    public static readonly PNPOutP TrainingInputName = Get<PNPOutP>(Training[25]), EvalInputName = Get<PNPOutP>(Training[26]);
    public static readonly PSIP AddProperty = Get<PSIP>(Training[27]);
    public static readonly PSPOutIP GetProperty = Get<PSPOutIP>(Training[28]);
    public static readonly SNOutP LoadCheckpointFromBuffer = Get<SNOutP>(Training[29]);
    public static readonly PSOutP GetParameterTypeAndShape = Get<PSOutP>(Training[30]);
    public static readonly PSP UpdateParameter = Get<PSP>(Training[31]);
    public static readonly PSPOutP GetParameter = Get<PSPOutP>(Training[32]);

    // Throw the error of a status, which is released.
    public static void Check(IntPtr status)
    {
        if (status == IntPtr.Zero)
            return;
        var error = new OrtException(GetErrorCode(status), Text(GetErrorMessage(status)));
        ReleaseStatus(status);
        throw error;
    }

    public static byte[] Utf8(string text) => text == null ? null : Encoding.UTF8.GetBytes(text + "\0");

    public static string Text(IntPtr text)
    {
        int length = 0;
        while (Marshal.ReadByte(text, length) != 0)
            length++;
        var bytes = new byte[length];
        Marshal.Copy(text, bytes, 0, length);
        return Encoding.UTF8.GetString(bytes);
    }

    public static UIntPtr Size(long count) => new UIntPtr(unchecked((ulong)count));
}
