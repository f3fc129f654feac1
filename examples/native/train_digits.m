// Trains a classifier of handwritten digits for an epoch and runs the exported model: train_digits ARTIFACTS CHECKPOINT OUT.
#import "OrtTraining.h"

enum { PIXELS = 64, BATCH = 32, CLASSES = 10 };

// Ends the program with the message of a failed call.
static void check(BOOL succeeded, NSError *error) {
    if (!succeeded) {
        fprintf(stderr, "%s\n", [[error localizedDescription] UTF8String]);
        exit(1);
    }
}

@interface Digits : NSObject {
    NSMutableData *images;
    NSMutableData *labels;
}
- (id)initWithFolder:(NSString *)folder;
- (int64_t)count;
- (NSArray *)valuesFrom:(int64_t)start count:(int64_t)rows;
- (double)accuracyOfModel:(NSString *)path env:(ORTEnv *)env;
@end

@implementation Digits
- (id)initWithFolder:(NSString *)folder {
    self = [super init];
    images = [[NSMutableData alloc] initWithContentsOfFile:[folder stringByAppendingPathComponent:@"images.bin"]];
    labels = [[NSMutableData alloc] initWithContentsOfFile:[folder stringByAppendingPathComponent:@"labels.bin"]];
    return self;
}

- (int64_t)count {
    return [labels length] / sizeof(int64_t);
}

// Images and labels of some rows as values over their bytes.
- (NSArray *)valuesFrom:(int64_t)start count:(int64_t)rows {
    NSError *error = nil;
    NSNumber *count = [NSNumber numberWithLongLong:rows];
    NSMutableData *pixels = [NSMutableData dataWithBytesNoCopy:(float *)[images mutableBytes] + start * PIXELS
                                                        length:rows * PIXELS * sizeof(float)
                                                  freeWhenDone:NO];
    NSMutableData *digits = [NSMutableData dataWithBytesNoCopy:(int64_t *)[labels mutableBytes] + start
                                                        length:rows * sizeof(int64_t)
                                                  freeWhenDone:NO];
    ORTValue *x = [[[ORTValue alloc] initWithTensorData:pixels
                                            elementType:ORTTensorElementDataTypeFloat
                                                  shape:[NSArray arrayWithObjects:count, [NSNumber numberWithInt:PIXELS], nil]
                                                  error:&error] autorelease];
    check(x != nil, error);
    ORTValue *y = [[[ORTValue alloc] initWithTensorData:digits
                                            elementType:ORTTensorElementDataTypeInt64
                                                  shape:[NSArray arrayWithObject:count]
                                                  error:&error] autorelease];
    check(y != nil, error);
    return [NSArray arrayWithObjects:x, y, nil];
}

// How many images the exported model recognizes.
- (double)accuracyOfModel:(NSString *)path env:(ORTEnv *)env {
    NSError *error = nil;
    ORTSession *session = [[[ORTSession alloc] initWithEnv:env modelPath:path sessionOptions:nil error:&error] autorelease];
    check(session != nil, error);
    NSDictionary *inputs = [NSDictionary dictionaryWithObject:[[self valuesFrom:0 count:[self count]] objectAtIndex:0] forKey:@"pixels"];
    NSDictionary *outputs = [session runWithInputs:inputs outputNames:[NSSet setWithObject:@"logits"] runOptions:nil error:&error];
    check(outputs != nil, error);
    const float *scores = [[[outputs objectForKey:@"logits"] tensorDataWithError:&error] bytes];
    const int64_t *expected = [labels bytes];
    int64_t right = 0;
    for (int64_t row = 0; row < [self count]; row++, scores += CLASSES) {
        int best = 0;
        for (int digit = 1; digit < CLASSES; digit++)
            best = scores[digit] > scores[best] ? digit : best;
        right += best == expected[row];
    }
    return (double)right / (double)[self count];
}

- (void)dealloc {
    [images release];
    [labels release];
    [super dealloc];
}
@end

static void train_epoch(ORTTrainingSession *session, Digits *digits) {
    for (int64_t start = 0; start + BATCH <= [digits count]; start += BATCH) {
        NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
        NSError *error = nil;
        check([session trainStepWithInputValues:[digits valuesFrom:start count:BATCH] error:&error] != nil, error);
        check([session optimizerStepWithError:&error], error);
        check([session schedulerStepWithError:&error], error);
        check([session lazyResetGradWithError:&error], error);
        [pool release];
    }
}

static void train(NSString *artifacts, NSString *path, NSString *out) {
    NSError *error = nil;
    Digits *digits = [[[Digits alloc] initWithFolder:artifacts] autorelease];
    ORTEnv *env = [[[ORTEnv alloc] initWithLoggingLevel:ORTLoggingLevelWarning error:&error] autorelease];
    check(env != nil, error);
    ORTCheckpoint *checkpoint = [[[ORTCheckpoint alloc] initWithPath:path error:&error] autorelease];
    check(checkpoint != nil, error);
    ORTTrainingSession *session =
        [[[ORTTrainingSession alloc] initWithEnv:env
                                  sessionOptions:nil
                                      checkpoint:checkpoint
                                  trainModelPath:[artifacts stringByAppendingPathComponent:@"training_model.onnx"]
                                   evalModelPath:[artifacts stringByAppendingPathComponent:@"eval_model.onnx"]
                              optimizerModelPath:[artifacts stringByAppendingPathComponent:@"optimizer_model.onnx"]
                                           error:&error] autorelease];
    check(session != nil, error);
    check([session registerLinearLRSchedulerWithWarmupStepCount:10 totalStepCount:100 initialLr:0.01f error:&error], error);
    train_epoch(session, digits);
    NSArray *results = [session evalStepWithInputValues:[digits valuesFrom:0 count:[digits count]] error:&error];
    check(results != nil, error);
    printf("loss %.9g\n", *(const float *)[[[results objectAtIndex:0] tensorDataWithError:&error] bytes]);
    printf("rate %.9g\n", [session getLearningRateWithError:&error]);
    float epochs = [checkpoint getFloatPropertyWithName:@"epochs" error:NULL] + 1;
    NSString *model = [out stringByAppendingPathComponent:@"trained.onnx"];
    check([checkpoint addFloatPropertyWithName:@"epochs" value:epochs error:&error], error);
    check([checkpoint saveCheckpointToPath:[out stringByAppendingPathComponent:@"trained.checkpoint"] withOptimizerState:YES error:&error], error);
    check([session exportModelForInferenceWithOutputPath:model graphOutputNames:[NSArray arrayWithObject:@"logits"] error:&error], error);
    printf("accuracy %.9g\nepochs %g\n", [digits accuracyOfModel:model env:env], epochs);
    if ([[ORTCheckpoint alloc] initWithPath:@"no such checkpoint" error:&error] == nil)
        printf("refused %s\n", [[error localizedDescription] UTF8String]);
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    NSAutoreleasePool *pool = [[NSAutoreleasePool alloc] init];
    train([NSString stringWithUTF8String:argv[1]], [NSString stringWithUTF8String:argv[2]], [NSString stringWithUTF8String:argv[3]]);
    [pool release];
    return 0;
}
