import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;

/** Trains in four threads while others meet null pointers, deep recursion and collections of garbage, whose signals the virtual machine handles. */
public final class Stress {
  private static final AtomicLong nulls = new AtomicLong();
  private static final AtomicLong overflows = new AtomicLong();
  private static int[] nothing;

  private static int deep(int level) {
    return deep(level + 1) + 1;
  }

  private static void disturb() {
    while (true) {
      try {
        nothing[0]++;
      } catch (NullPointerException error) {
        if (nulls.incrementAndGet() % 100_000 == 0) {
          System.gc();
          try {
            deep(0);
          } catch (StackOverflowError overflow) {
            overflows.incrementAndGet();
          }
        }
      }
    }
  }

  public static void main(String[] arguments) throws Exception {
    Thread disturbance = new Thread(Stress::disturb);
    disturbance.setDaemon(true);
    disturbance.start();
    ExecutorService pool = Executors.newFixedThreadPool(4);
    List<Future<?>> trained = new ArrayList<>();
    for (int i = 0; i < 4; i++) {
      String folder = Files.createDirectories(Path.of(arguments[2], Integer.toString(i))).toString();
      trained.add(pool.submit(() -> {
        TrainDigits.main(new String[] {arguments[0], arguments[1], folder});
        return null;
      }));
    }
    for (Future<?> future : trained) {
      future.get();
    }
    pool.shutdown();
    System.out.println("disturbed " + (nulls.get() > 0 && overflows.get() > 0));
  }
}
