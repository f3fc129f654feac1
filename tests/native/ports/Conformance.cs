// The conformance port in C#: answers the requests of `python -m ortrain conformance run --port` by way of the tables of the native library. It has the
// operations of the published managed binding. docs/porting.md describes the protocol, and what an answer "absent" of this port means.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Text;
using Arguments = System.Collections.Generic.Dictionary<string, object>;
using static Native;

// The request cannot be made in C#.
sealed class AbsentException : Exception
{
    public AbsentException(string why) : base(why) { }
}

// A handle of the library. Dispose may be called twice; the pointer stays, so that the library refuses what uses it afterwards.
class Handle : IDisposable
{
    public readonly IntPtr Pointer;
    readonly Free release;
    bool disposed;

    public Handle(IntPtr pointer, Free release) { Pointer = pointer; this.release = release; }

    public virtual void Dispose()
    {
        if (!disposed)
            release(Pointer);
        disposed = true;
    }
}

sealed class Options : Handle
{
    public long Threads, LogLevel = 2;
    public bool Terminate;

    public Options(IntPtr pointer, Free release) : base(pointer, release) { }
}

sealed class Port
{
    delegate object Operation(Handle on, Arguments arguments);

    readonly Dictionary<string, Handle> objects = new Dictionary<string, Handle>();
    readonly SortedDictionary<string, Operation> operations = new SortedDictionary<string, Operation>(StringComparer.Ordinal);
    readonly IntPtr environment, allocator;

    Port()
    {
        Check(CreateEnv(2, Utf8("port"), out environment));
        Check(GetAllocatorWithDefaultOptions(out allocator));
        AddOptions();
        AddTensors();
        AddStates();
        AddSessions();
    }

    // ---- arguments

    static string String(Arguments arguments, string name)
    {
        object value;
        if (!arguments.TryGetValue(name, out value) || value == null)
            return null;
        return value as string ?? throw Mistyped(name);
    }

    static AbsentException Mistyped(string name) => new AbsentException(name + " of another type, which the compiler refuses");

    static long Integer(Arguments arguments, string name) => arguments[name] is long number ? number : throw Mistyped(name);

    static float Float(Arguments arguments, string name)
    {
        object value = arguments[name];
        return value is long || value is double ? Convert.ToSingle(value) : throw Mistyped(name);
    }

    static bool Flag(Arguments arguments, string name) => arguments[name] is bool flag ? flag : throw Mistyped(name);

    IntPtr Pointer(Arguments arguments, string name)
    {
        object value;
        return arguments.TryGetValue(name, out value) && value is Arguments reference ? Object((string)reference["object"]).Pointer : IntPtr.Zero;
    }

    Handle Object(string name) => objects.ContainsKey(name) ? objects[name] : throw new FormatException("expected the name of an object, got " + name);

    static byte[] Bytes(Arguments arguments, string name)
    {
        object value;
        return arguments.TryGetValue(name, out value) && value is Arguments given ? Convert.FromBase64String((string)given["bytes"]) : null;
    }

    static IntPtr[] Texts(object list)
    {
        return ((List<object>)list).Select(text =>
        {
            byte[] bytes = Utf8((string)text);
            IntPtr copy = Marshal.AllocHGlobal(bytes.Length);
            Marshal.Copy(bytes, 0, copy, bytes.Length);
            return copy;
        }).ToArray();
    }

    static UIntPtr Length(byte[] bytes) => Size(bytes == null ? 0 : bytes.Length);

    string Taken(IntPtr text)
    {
        string copy = Text(text);
        Check(AllocatorFree(allocator, text));
        return copy;
    }

    object Done(IntPtr status)
    {
        Check(status);
        return null;
    }

    static object Disposed(Handle on)
    {
        on.Dispose();
        return null;
    }

    // ---- options

    void AddOptions()
    {
        operations["session_options.create"] = (on, a) => { IntPtr made; Check(CreateSessionOptions(out made)); return new Options(made, ReleaseSessionOptions); };
        operations["session_options.intra_op_num_threads"] = (on, a) => ((Options)on).Threads;
        operations["session_options.log_severity_level"] = (on, a) => ((Options)on).LogLevel;
        operations["session_options.set_intra_op_num_threads"] = (on, a) =>
        {
            Check(SetIntraOpNumThreads(on.Pointer, (int)Integer(a, "threads")));
            ((Options)on).Threads = Integer(a, "threads");
            return null;
        };
        operations["session_options.set_log_severity_level"] = (on, a) =>
        {
            Check(SetSessionLogSeverityLevel(on.Pointer, (int)Integer(a, "level")));
            ((Options)on).LogLevel = Integer(a, "level");
            return null;
        };
        operations["session_options.add_config_entry"] = (on, a) => Done(AddSessionConfigEntry(on.Pointer, Utf8(String(a, "key")), Utf8(String(a, "value"))));
        operations["session_options.append_execution_provider"] = (on, a) =>
            Done(SessionOptionsAppendExecutionProvider(on.Pointer, Utf8(String(a, "provider")), IntPtr.Zero, IntPtr.Zero, UIntPtr.Zero));
        operations["session_options.register_custom_ops_library"] = (on, a) => Done(RegisterCustomOpsLibrary(on.Pointer, Utf8(String(a, "path"))));
        operations["session_options.release"] = (on, a) => Disposed(on);
        operations["run_options.create"] = (on, a) => { IntPtr made; Check(CreateRunOptions(out made)); return new Options(made, ReleaseRunOptions); };
        operations["run_options.terminate"] = (on, a) => ((Options)on).Terminate;
        operations["run_options.set_terminate"] = (on, a) =>
        {
            ((Options)on).Terminate = Flag(a, "value");
            return Done(Flag(a, "value") ? RunOptionsSetTerminate(on.Pointer) : RunOptionsUnsetTerminate(on.Pointer));
        };
        operations["run_options.release"] = (on, a) => Disposed(on);
    }

    // ---- tensors

    void AddTensors()
    {
        operations["tensor.create"] = (on, a) =>
        {
            int type;
            Array elements = Tensor.Elements((Arguments)a["memory"], out type);
            return Tensor.Over(elements, type, Tensor.Sizes(a["shape"]));
        };
        operations["tensor.data"] = (on, a) => ((Tensor)on).Encoded(true);
        operations["tensor.mutable_data"] = (on, a) =>
        {
            if (a.ContainsKey("write"))
            {
                int type;
                IntPtr data;
                var elements = (float[])Tensor.Elements((Arguments)a["write"], out type);
                Check(GetTensorMutableData(on.Pointer, out data));
                Marshal.Copy(elements, 0, data, elements.Length);
            }
            return ((Tensor)on).Encoded(true);
        };
        operations["tensor.type_and_shape"] = (on, a) => ((Tensor)on).Info();
        operations["tensor.is_tensor"] = (on, a) => { int answer; Check(IsTensor(on.Pointer, out answer)); return answer != 0; };
        operations["tensor.release"] = (on, a) => Disposed(on);
        operations["type_and_shape.element_type"] = (on, a) => Tensor.ElementType(on);
        operations["type_and_shape.shape"] = (on, a) => Tensor.Shape(on);
        operations["type_and_shape.dimensions_count"] = (on, a) => Tensor.Shape(on).Length;
        operations["type_and_shape.element_count"] = (on, a) => Tensor.Count(on);
        operations["pinned_value.create"] = (on, a) => Tensor.Of(a["tensor"]);
        operations["pinned_value.release"] = (on, a) => Disposed(on);
        operations["named_value.name"] = (on, a) => ((Tensor)on).Name;
        operations["named_value.value"] = (on, a) => ((Tensor)on).Encoded();
        operations["named_value.release"] = (on, a) => Disposed(on);
    }

    // ---- checkpoints

    void AddStates()
    {
        operations["checkpoint_state.load"] = (on, a) =>
        {
            IntPtr made;
            Check(LoadCheckpoint(Utf8(String(a, "path")), out made));
            return new Handle(made, ReleaseCheckpointState);
        };
        operations["checkpoint_state.load_from_buffer"] = (on, a) =>
        {
            IntPtr made;
            byte[] bytes = Bytes(a, "data");
            Check(LoadCheckpointFromBuffer(bytes, Length(bytes), out made));
            return new Handle(made, ReleaseCheckpointState);
        };
        operations["checkpoint_state.save"] = (on, a) => Done(SaveCheckpoint(on.Pointer, Utf8(String(a, "path")), Flag(a, "include_optimizer_state")));
        operations["checkpoint_state.set_property"] = (on, a) => SetProperty(on, String(a, "name"), a["value"]);
        operations["checkpoint_state.get_property"] = (on, a) => Property(on, String(a, "name"));
        operations["checkpoint_state.get_parameter"] = (on, a) =>
        {
            IntPtr value;
            Check(GetParameter(on.Pointer, Utf8(String(a, "name")), allocator, out value));
            using (var tensor = new Tensor(value))
                return tensor.Encoded();
        };
        operations["checkpoint_state.set_parameter"] = (on, a) =>
        {
            using (Tensor value = Tensor.Of(a["value"]))
                return Done(UpdateParameter(on.Pointer, Utf8(String(a, "name")), value.Pointer));
        };
        operations["checkpoint_state.parameter_type_and_shape"] = (on, a) =>
        {
            IntPtr info;
            Check(GetParameterTypeAndShape(on.Pointer, Utf8(String(a, "name")), out info));
            return new Handle(info, ReleaseTensorTypeAndShapeInfo);
        };
        operations["checkpoint_state.release"] = (on, a) => Disposed(on);
    }

    object SetProperty(Handle state, string name, object value)
    {
        byte[] bytes = value is long number ? BitConverter.GetBytes(number) : value is double real ? BitConverter.GetBytes((float)real)
            : value is string text ? Utf8(text) : throw Mistyped("value");
        GCHandle pinned = GCHandle.Alloc(bytes, GCHandleType.Pinned);
        IntPtr status = AddProperty(state.Pointer, Utf8(name), value is long ? 0 : value is double ? 1 : 2, pinned.AddrOfPinnedObject());
        pinned.Free();
        return Done(status);
    }

    object Property(Handle state, string name)
    {
        int type;
        IntPtr value;
        Check(GetProperty(state.Pointer, Utf8(name), allocator, out type, out value));
        if (type == 2)
            return Taken(value);
        long bits = type == 0 ? Marshal.ReadInt64(value) : Marshal.ReadInt32(value);
        Check(AllocatorFree(allocator, value));
        return type == 0 ? bits : (object)BitConverter.ToSingle(BitConverter.GetBytes((int)bits), 0);
    }

    // ---- sessions

    void AddSessions()
    {
        operations["training_session.create"] = (on, a) =>
        {
            IntPtr made;
            Check(CreateTrainingSession(environment, Pointer(a, "options"), Pointer(a, "state"), Utf8(String(a, "train_model")), Utf8(String(a, "eval_model")),
                                        Utf8(String(a, "optimizer_model")), out made));
            return new Handle(made, ReleaseTrainingSession);
        };
        operations["training_session.create_from_buffers"] = (on, a) =>
        {
            IntPtr made;
            byte[] train = Bytes(a, "train_model"), eval = Bytes(a, "eval_model"), optimizer = Bytes(a, "optimizer_model");
            Check(CreateTrainingSessionFromBuffer(environment, Pointer(a, "options"), Pointer(a, "state"), train, Length(train), eval, Length(eval), optimizer,
                                                  Length(optimizer), out made));
            return new Handle(made, ReleaseTrainingSession);
        };
        operations["training_session.train_step"] = (on, a) => RunStep(on, a, true);
        operations["training_session.eval_step"] = (on, a) => RunStep(on, a, false);
        operations["training_session.optimizer_step"] = (on, a) => Done(OptimizerStep(on.Pointer, Pointer(a, "run_options")));
        operations["training_session.lazy_reset_grad"] = (on, a) => Done(LazyResetGrad(on.Pointer));
        operations["training_session.set_learning_rate"] = (on, a) => Done(SetLearningRate(on.Pointer, Float(a, "learning_rate")));
        operations["training_session.get_learning_rate"] = (on, a) => { float rate; Check(GetLearningRate(on.Pointer, out rate)); return rate; };
        operations["training_session.register_linear_lr_scheduler"] = (on, a) =>
            Done(RegisterLinearLRScheduler(on.Pointer, Integer(a, "warmup_step_count"), Integer(a, "total_step_count"), Float(a, "initial_lr")));
        operations["training_session.scheduler_step"] = (on, a) => Done(SchedulerStep(on.Pointer));
        operations["training_session.input_names"] = (on, a) =>
            Flag(a, "training") ? Names(on, TrainingInputCount, TrainingInputName) : Names(on, EvalInputCount, EvalInputName);
        operations["training_session.output_names"] = (on, a) =>
            Flag(a, "training") ? Names(on, TrainingOutputCount, TrainingOutputName) : Names(on, EvalOutputCount, EvalOutputName);
        operations["training_session.to_buffer"] = (on, a) =>
        {
            UIntPtr size;
            Check(GetParametersSize(on.Pointer, out size, Flag(a, "trainable_only")));
            using (Tensor buffer = Tensor.Over(new float[(int)size], 1, new[] { (long)size }))
            {
                Check(CopyParametersToBuffer(on.Pointer, buffer.Pointer, Flag(a, "trainable_only")));
                return buffer.Encoded();
            }
        };
        operations["training_session.from_buffer"] = (on, a) =>
        {
            using (Tensor buffer = Tensor.Of(a["buffer"]))
                return Done(CopyBufferToParameters(on.Pointer, buffer.Pointer, Flag(a, "trainable_only")));
        };
        operations["training_session.export_model_for_inferencing"] = (on, a) =>
        {
            IntPtr[] names = Texts(a["output_names"]);
            IntPtr status = ExportModelForInferencing(on.Pointer, Utf8(String(a, "path")), Size(names.Length), names);
            foreach (IntPtr name in names)
                Marshal.FreeHGlobal(name);
            return Done(status);
        };
        operations["training_session.release"] = (on, a) => Disposed(on);
        operations["training.set_seed"] = (on, a) => Done(SetSeed(Integer(a, "seed")));
    }

    string[] Names(Handle session, POutN count, PNPOutP name)
    {
        UIntPtr found;
        Check(count(session.Pointer, out found));
        return Enumerable.Range(0, (int)found).Select(index =>
        {
            IntPtr text;
            Check(name(session.Pointer, Size(index), allocator, out text));
            return Taken(text);
        }).ToArray();
    }

    object RunStep(Handle session, Arguments arguments, bool trains)
    {
        object wanted;
        arguments.TryGetValue("outputs", out wanted);
        var temporary = ((List<object>)arguments["inputs"]).Select(Tensor.Of).ToList();
        IntPtr[] inputs = temporary.Select(tensor => tensor.Pointer).ToArray(), outputs;
        try
        {
            if (wanted is List<object> given)
            {
                List<Tensor> places = given.Select(Tensor.Of).ToList();
                temporary.AddRange(places);
                outputs = places.Select(tensor => tensor.Pointer).ToArray();
                RunInto(session, arguments, trains, inputs, outputs);
                return places.Select(tensor => tensor.Encoded()).ToArray();
            }
            UIntPtr count;
            Check((trains ? TrainingOutputCount : EvalOutputCount)(session.Pointer, out count));
            outputs = new IntPtr[(int)count];
            RunInto(session, arguments, trains, inputs, outputs);
            List<Tensor> made = outputs.Select(pointer => new Tensor(pointer)).ToList();
            temporary.AddRange(made);
            if (!arguments.ContainsKey("named") || !Flag(arguments, "named"))
                return made.Select(tensor => tensor.Encoded()).ToArray();
            temporary.Remove(made[0]);
            made[0].Name = Names(session, TrainingOutputCount, TrainingOutputName)[0];
            return made[0];
        }
        finally
        {
            temporary.ForEach(tensor => tensor.Dispose());
        }
    }

    void RunInto(Handle session, Arguments arguments, bool trains, IntPtr[] inputs, IntPtr[] outputs)
    {
        Check((trains ? TrainStep : EvalStep)(session.Pointer, Pointer(arguments, "run_options"), Size(inputs.Length), inputs, Size(outputs.Length), outputs));
    }

    // ---- requests

    Arguments Reply(string line)
    {
        string call = "";
        try
        {
            var request = (Arguments)Json.Read(line);
            call = (string)request["call"];
            return Answer(request, call);
        }
        catch (AbsentException absent)
        {
            return new Arguments { ["absent"] = call + ": " + absent.Message };
        }
        catch (OrtException error)
        {
            string shown = "throws OnnxRuntimeException: [ErrorCode:" + error.Code + "] " + error.Message;
            return new Arguments { ["error"] = new Arguments { ["name"] = null, ["code"] = error.Code, ["message"] = error.Message, ["shown"] = shown } };
        }
        catch (Exception error)         // every request gets a reply, whatever it contains
        {
            return new Arguments { ["refused"] = error.GetType().Name + ": " + error.Message };
        }
    }

    Arguments Answer(Arguments request, string call)
    {
        object value;
        if (call == "hello")
            return new Arguments { ["result"] = new Arguments {
                ["protocol"] = 1, ["language"] = "csharp", ["name"] = "native-csharp", ["operations"] = operations.Keys } };
        if (call == "reset")
        {
            foreach (Handle handle in objects.Values)
                handle.Dispose();
            objects.Clear();
            return new Arguments { ["result"] = null };
        }
        Handle on = request.TryGetValue("on", out value) ? Object((string)value) : null;
        if (!operations.ContainsKey(call))
            return new Arguments { ["absent"] = call };
        Arguments arguments = request.TryGetValue("arguments", out value) ? (Arguments)value : new Arguments();
        object result = operations[call](on, arguments);
        if (!(result is Handle made))
            return new Arguments { ["result"] = result };
        string name = request.TryGetValue("as", out value) ? (string)value : "object";
        if (objects.ContainsKey(name))
            objects[name].Dispose();
        objects[name] = made;
        return new Arguments { ["result"] = new Arguments { ["object"] = name } };
    }

    static void Main()
    {
        var port = new Port();
        var replies = new StreamWriter(Console.OpenStandardOutput(), new UTF8Encoding(false)) { AutoFlush = true };
        var requests = new StreamReader(Console.OpenStandardInput(), new UTF8Encoding(false));
        for (string line = requests.ReadLine(); line != null; line = requests.ReadLine())
            if (line.Trim() != "")
                replies.WriteLine(Json.Write(port.Reply(line)));
        ReleaseEnv(port.environment);
    }
}
