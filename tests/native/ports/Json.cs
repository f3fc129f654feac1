// A minimal reader and writer of JSON: objects are dictionaries, lists are lists, numbers with a fraction or an exponent are doubles and others longs.
using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Text;

static class Json
{
    public static object Read(string text)
    {
        int at = 0;
        return Value(text, ref at);
    }

    static void Space(string text, ref int at)
    {
        while (at < text.Length && char.IsWhiteSpace(text[at]))
            at++;
    }

    static char Next(string text, ref int at)
    {
        Space(text, ref at);
        return at < text.Length ? text[at] : throw new FormatException("the text ends within a value");
    }

    static object Value(string text, ref int at)
    {
        switch (Next(text, ref at))
        {
            case '"': return String(text, ref at);
            case '[': return List(text, ref at);
            case '{': return Object(text, ref at);
        }
        int start = at;
        while (at < text.Length && " \t\r\n,]}".IndexOf(text[at]) < 0)
            at++;
        string word = text.Substring(start, at - start);
        switch (word)
        {
            case "null": return null;
            case "true": return true;
            case "false": return false;
        }
        return word.IndexOfAny(new[] { '.', 'e', 'E', 'N', 'I' }) < 0 ? long.Parse(word, CultureInfo.InvariantCulture)
                                                                       : (object)double.Parse(word, CultureInfo.InvariantCulture);
    }

    static List<object> List(string text, ref int at)
    {
        var items = new List<object>();
        for (at++; Next(text, ref at) != ']'; at += text[at] == ',' ? 1 : 0)
        {
            items.Add(Value(text, ref at));
            Next(text, ref at);
        }
        at++;
        return items;
    }

    static Dictionary<string, object> Object(string text, ref int at)
    {
        var items = new Dictionary<string, object>();
        for (at++; Next(text, ref at) != '}'; at += text[at] == ',' ? 1 : 0)
        {
            string key = String(text, ref at);
            if (Next(text, ref at) != ':')
                throw new FormatException("expected a colon after a key");
            at++;
            items[key] = Value(text, ref at);
            Next(text, ref at);
        }
        at++;
        return items;
    }

    static string String(string text, ref int at)
    {
        var found = new StringBuilder();
        if (Next(text, ref at) != '"')
            throw new FormatException("expected a string");
        for (at++; text[at] != '"'; at++)
        {
            if (text[at] != '\\')
            {
                found.Append(text[at]);
                continue;
            }
            at++;
            int escape = "nrtbf".IndexOf(text[at]);
            if (text[at] == 'u')
            {
                found.Append((char)Convert.ToInt32(text.Substring(at + 1, 4), 16));
                at += 4;
            }
            else
                found.Append(escape < 0 ? text[at] : "\n\r\t\b\f"[escape]);
        }
        at++;
        return found.ToString();
    }

    public static string Write(object value)
    {
        if (value == null)
            return "null";
        if (value is bool)
            return (bool)value ? "true" : "false";
        if (value is string)
            return Quoted((string)value);
        if (value is float || value is double)
            return Convert.ToDouble(value).ToString("R", CultureInfo.InvariantCulture);
        if (value is Dictionary<string, object>)
            return "{" + string.Join(", ", ((Dictionary<string, object>)value).Select(item => Quoted(item.Key) + ": " + Write(item.Value))) + "}";
        if (value is IEnumerable)
            return "[" + string.Join(", ", ((IEnumerable)value).Cast<object>().Select(Write)) + "]";
        return Convert.ToString(value, CultureInfo.InvariantCulture);
    }

    static string Quoted(string text)
    {
        var found = new StringBuilder("\"");
        foreach (char letter in text)
            if (letter == '"' || letter == '\\')
                found.Append('\\').Append(letter);
            else if (letter < ' ' || letter > '~')
                found.Append("\\u").Append(((int)letter).ToString("x4"));
            else
                found.Append(letter);
        return found.Append('"').ToString();
    }
}
