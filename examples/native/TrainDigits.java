import ai.onnxruntime.OnnxTensor;
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.OrtTrainingSession;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;

/** Trains a classifier of handwritten digits for an epoch and runs the exported model: TrainDigits ARTIFACTS CHECKPOINT OUT. */
public final class TrainDigits {
  private static final int PIXELS = 64;
  private static final int BATCH = 32;

  private final OrtEnvironment env = OrtEnvironment.getEnvironment("digits");
  private final FloatBuffer images;
  private final LongBuffer labels;

  private TrainDigits(Path artifacts) throws IOException {
    images = read(artifacts.resolve("images.bin")).asFloatBuffer();
    labels = read(artifacts.resolve("labels.bin")).asLongBuffer();
  }

  /** Reads a file into memory outside of the heap, which tensors use without a copy. */
  private static ByteBuffer read(Path path) throws IOException {
    byte[] bytes = Files.readAllBytes(path);
    return ByteBuffer.allocateDirect(bytes.length).order(ByteOrder.nativeOrder()).put(bytes).flip().order(ByteOrder.nativeOrder());
  }

  private OnnxTensor images(int start, int rows) throws OrtException {
    return OnnxTensor.createTensor(env, images.slice(start * PIXELS, rows * PIXELS), new long[] {rows, PIXELS});
  }

  private OnnxTensor labels(int start, int rows) throws OrtException {
    return OnnxTensor.createTensor(env, labels.slice(start, rows), new long[] {rows});
  }

  /** Returns the inputs of a step in the model's order, in which a training session passes them on. */
  private static Map<String, OnnxTensor> inputs(OnnxTensor x, OnnxTensor y) {
    Map<String, OnnxTensor> inputs = new LinkedHashMap<>();
    inputs.put("pixels", x);
    inputs.put("labels", y);
    return inputs;
  }

  private static float epochs(OrtTrainingSession session) {
    try {
      return session.getFloatProperty("epochs");
    } catch (OrtException error) {
      return 0; // a new checkpoint
    }
  }

  private void trainEpoch(OrtTrainingSession session) throws OrtException {
    for (int start = 0; start + BATCH <= labels.limit(); start += BATCH) {
      try (OnnxTensor x = images(start, BATCH); OnnxTensor y = labels(start, BATCH)) {
        session.trainStep(inputs(x, y)).close();
      }
      session.optimizerStep();
      session.schedulerStep();
      session.lazyResetGrad();
    }
  }

  private float loss(OrtTrainingSession session) throws OrtException {
    int rows = labels.limit();
    try (OnnxTensor x = images(0, rows); OnnxTensor y = labels(0, rows);
        OrtSession.Result result = session.evalStep(inputs(x, y))) {
      return ((OnnxTensor) result.get(0)).getFloatBuffer().get(0);
    }
  }

  /** Returns how many images the exported model recognizes. */
  private double accuracy(Path model) throws OrtException {
    int rows = labels.limit();
    int right = 0;
    try (OrtSession session = env.createSession(model.toString());
        OnnxTensor x = images(0, rows);
        OrtSession.Result result = session.run(Map.of("pixels", x))) {
      float[][] scores = (float[][]) result.get(0).getValue();
      for (int row = 0; row < rows; row++) {
        int best = 0;
        for (int digit = 1; digit < scores[row].length; digit++) {
          best = scores[row][digit] > scores[row][best] ? digit : best;
        }
        right += best == labels.get(row) ? 1 : 0;
      }
    }
    return (double) right / rows;
  }

  private OrtTrainingSession open(Path artifacts, String checkpoint) throws OrtException {
    return env.createTrainingSession(checkpoint, artifacts.resolve("training_model.onnx").toString(),
        artifacts.resolve("eval_model.onnx").toString(), artifacts.resolve("optimizer_model.onnx").toString());
  }

  public static void main(String[] arguments) throws IOException, OrtException {
    Path artifacts = Path.of(arguments[0]);
    Path out = Path.of(arguments[2]);
    Path model = out.resolve("trained.onnx");
    TrainDigits digits = new TrainDigits(artifacts);
    try (OrtTrainingSession session = digits.open(artifacts, arguments[1])) {
      session.registerLinearLRScheduler(10, 100, 0.01f);
      digits.trainEpoch(session);
      System.out.println("loss " + digits.loss(session));
      System.out.println("rate " + session.getLearningRate());
      float epochs = epochs(session) + 1;
      session.addProperty("epochs", epochs);
      session.saveCheckpoint(out.resolve("trained.checkpoint"), true);
      session.exportModelForInference(model, new String[] {"logits"});
      System.out.println("accuracy " + digits.accuracy(model));
      System.out.println("epochs " + epochs);
    }
    try {
      digits.open(artifacts, "no such checkpoint").close();
    } catch (OrtException error) {
      System.out.println("refused " + error.getMessage());
    }
  }
}
