using System;
using System.Collections.Generic;
using System.Linq;
using System.Runtime.InteropServices;
using Arguments = System.Collections.Generic.Dictionary<string, object>;
using static Native;

// A tensor over a pinned array of the program, or of the library.
sealed class Tensor : Handle
{
    public string Name;
    GCHandle pinned;

    public Tensor(IntPtr pointer) : base(pointer, ReleaseValue) { }

    Tensor(IntPtr pointer, GCHandle pinned) : base(pointer, ReleaseValue) { this.pinned = pinned; }

    static readonly string[] types = { null, "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64" };

    public static Tensor Over(Array elements, int type, long[] shape)
    {
        GCHandle pinned = GCHandle.Alloc(elements, GCHandleType.Pinned);
        IntPtr info, value;
        Check(CreateCpuMemoryInfo(0, 0, out info));
        IntPtr status = CreateTensorWithDataAsOrtValue(info, pinned.AddrOfPinnedObject(), Size(Buffer.ByteLength(elements)), shape, Size(shape.Length), type,
                                                       out value);
        ReleaseMemoryInfo(info);
        if (status != IntPtr.Zero)
            pinned.Free();
        Check(status);
        return new Tensor(value, pinned);
    }

    public static Array Elements(Arguments tensor, out int type)
    {
        var data = (List<object>)tensor["data"];
        type = Array.IndexOf(types, (string)tensor["dtype"]);
        switch (type)
        {
            case 1: return data.Select(Convert.ToSingle).ToArray();
            case 6: return data.Select(Convert.ToInt32).ToArray();
            case 7: return data.Select(Convert.ToInt64).ToArray();
            case 11: return data.Select(Convert.ToDouble).ToArray();
            default: throw new FormatException("expected an element type of the cases, got " + tensor["dtype"]);
        }
    }

    public static long[] Sizes(object list) => ((List<object>)list).Select(Convert.ToInt64).ToArray();

    public static Tensor Of(object tensor)
    {
        if (!(tensor is Arguments given) || !given.ContainsKey("dtype"))
            throw new AbsentException("a value that is no tensor, which the compiler refuses");
        int type;
        Array elements = Elements(given, out type);
        return Over(elements, type, Sizes(given["shape"]));
    }

    public Handle Info()
    {
        IntPtr info;
        Check(GetTensorTypeAndShape(Pointer, out info));
        return new Handle(info, ReleaseTensorTypeAndShapeInfo);
    }

    public static int ElementType(Handle info)
    {
        int type;
        Check(GetTensorElementType(info.Pointer, out type));
        return type;
    }

    public static long[] Shape(Handle info)
    {
        UIntPtr rank;
        Check(GetDimensionsCount(info.Pointer, out rank));
        var shape = new long[(int)rank];
        Check(GetDimensions(info.Pointer, shape, rank));
        return shape;
    }

    public static long Count(Handle info)
    {
        UIntPtr count;
        Check(GetTensorShapeElementCount(info.Pointer, out count));
        return (long)count;
    }

    public Array Read(int type, int count)
    {
        IntPtr data;
        Check(GetTensorMutableData(Pointer, out data));
        switch (type)
        {
            case 1: { var copy = new float[count]; Marshal.Copy(data, copy, 0, count); return copy; }
            case 6: { var copy = new int[count]; Marshal.Copy(data, copy, 0, count); return copy; }
            case 7: { var copy = new long[count]; Marshal.Copy(data, copy, 0, count); return copy; }
            case 11: { var copy = new double[count]; Marshal.Copy(data, copy, 0, count); return copy; }
            default: throw new FormatException("expected an element type of the cases, got number " + type);
        }
    }

    // The tensor as JSON; flat: as a vector.
    public Arguments Encoded(bool flat = false)
    {
        using (Handle info = Info())
        {
            int type = ElementType(info);
            long count = Count(info);
            return new Arguments { ["dtype"] = types[type], ["shape"] = flat ? new[] { count } : Shape(info), ["data"] = Read(type, (int)count) };
        }
    }

    public override void Dispose()
    {
        base.Dispose();
        if (pinned.IsAllocated)
            pinned.Free();
    }
}
