using System;
using System.IO;
using System.Threading;

/// <summary>Trains in four threads while another meets null references and collects garbage, for which mono stops threads by signals.</summary>
public static class Stress
{
    static int[] nothing;
    static long nulls;

    static void Disturb()
    {
        while (true)
        {
            try
            {
                nothing[0]++;
            }
            catch (NullReferenceException)
            {
                if (++nulls % 100 == 0)
                    GC.Collect();
            }
        }
    }

    public static int Main(string[] arguments)
    {
        new Thread(Disturb) { IsBackground = true }.Start();
        Exception failed = null;
        var threads = new Thread[4];
        for (int i = 0; i < threads.Length; i++)
        {
            var folder = Directory.CreateDirectory(Path.Combine(arguments[2], i.ToString())).FullName;
            threads[i] = new Thread(() =>
            {
                try
                {
                    TrainDigits.Main(new[] { arguments[0], arguments[1], folder });
                }
                catch (Exception error)
                {
                    failed = error;
                }
            });
            threads[i].Start();
        }
        foreach (var thread in threads)
            thread.Join();
        if (failed != null)
            throw failed;
        Console.WriteLine("disturbed " + (nulls > 0));
        return 0;
    }
}
