using System;
using System.Collections.Generic;
using System.IO;
using Microsoft.ML.OnnxRuntime;

/// <summary>Trains a classifier of handwritten digits for an epoch and runs the exported model: TrainDigits ARTIFACTS CHECKPOINT OUT.</summary>
public static class TrainDigits
{
    const int Pixels = 64, Batch = 32, Classes = 10;

    static T[] Read<T>(string path, int size)
    {
        var bytes = File.ReadAllBytes(path);
        var values = new T[bytes.Length / size];
        Buffer.BlockCopy(bytes, 0, values, 0, bytes.Length);
        return values;
    }

    static OrtValue Tensor<T>(T[] values, int start, int count, params long[] shape) where T : struct
    {
        return OrtValue.CreateTensorValueFromMemory(OrtMemoryInfo.DefaultInstance, new Memory<T>(values, start, count), shape);
    }

    static float Epochs(CheckpointState state)
    {
        try
        {
            return (float)state.GetProperty("epochs");
        }
        catch (OnnxRuntimeException)
        {
            return 0;       // a new checkpoint
        }
    }

    static void TrainEpoch(TrainingSession session, float[] images, long[] labels)
    {
        for (int start = 0; start + Batch <= labels.Length; start += Batch)
        {
            using (var x = Tensor(images, start * Pixels, Batch * Pixels, Batch, Pixels))
            using (var y = Tensor(labels, start, Batch, Batch))
            using (session.TrainStep(new[] { x, y })) { }
            session.OptimizerStep();
            session.SchedulerStep();
            session.LazyResetGrad();
        }
    }

    static float Loss(TrainingSession session, float[] images, long[] labels)
    {
        using (var x = Tensor(images, 0, images.Length, labels.Length, Pixels))
        using (var y = Tensor(labels, 0, labels.Length, labels.Length))
        using (var results = session.EvalStep(new[] { x, y }))
        {
            foreach (var result in results)
                return result.GetTensorDataAsSpan<float>()[0];
        }
        throw new InvalidOperationException("the eval model has no output");
    }

    /// <summary>Returns how many images the exported model recognizes.</summary>
    static double Accuracy(string model, float[] images, long[] labels)
    {
        int right = 0;
        using (var options = new RunOptions())
        using (var session = new InferenceSession(model))
        using (var x = Tensor(images, 0, images.Length, labels.Length, Pixels))
        using (var results = session.Run(options, new Dictionary<string, OrtValue> { { "pixels", x } }, new[] { "logits" }))
        {
            var scores = results[0].GetTensorDataAsSpan<float>();
            for (int row = 0; row < labels.Length; row++)
            {
                int best = 0;
                for (int digit = 1; digit < Classes; digit++)
                    best = scores[row * Classes + digit] > scores[row * Classes + best] ? digit : best;
                right += best == labels[row] ? 1 : 0;
            }
        }
        return (double)right / labels.Length;
    }

    public static void Main(string[] arguments)
    {
        Func<string, string> artifact = name => Path.Combine(arguments[0], name), written = name => Path.Combine(arguments[2], name);
        var images = Read<float>(artifact("images.bin"), sizeof(float));
        var labels = Read<long>(artifact("labels.bin"), sizeof(long));
        using (var state = CheckpointState.LoadCheckpoint(arguments[1]))
        using (var session = new TrainingSession(state, artifact("training_model.onnx"), artifact("eval_model.onnx"), artifact("optimizer_model.onnx")))
        {
            session.RegisterLinearLRScheduler(10, 100, 0.01f);
            TrainEpoch(session, images, labels);
            Console.WriteLine($"loss {Loss(session, images, labels):R}");
            Console.WriteLine($"rate {session.GetLearningRate():R}");
            float epochs = Epochs(state) + 1;
            state.AddProperty("epochs", epochs);
            CheckpointState.SaveCheckpoint(state, written("trained.checkpoint"), true);
            session.ExportModelForInferencing(written("trained.onnx"), new[] { "logits" });
            Console.WriteLine($"accuracy {Accuracy(written("trained.onnx"), images, labels):R}");
            Console.WriteLine($"epochs {epochs}");
        }
        try
        {
            CheckpointState.LoadCheckpoint("no such checkpoint").Dispose();
        }
        catch (OnnxRuntimeException error)
        {
            Console.WriteLine($"refused {error.Message}");
        }
    }
}
