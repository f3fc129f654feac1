// A part of onnxruntime's Objective-C interface, with its names: sessions for training and inference, checkpoints and values.
// Objects own what they are made of; methods that fail return nil or NO and set the error.
#import <Foundation/Foundation.h>

extern NSString *const ORTErrorDomain;

typedef enum { ORTLoggingLevelWarning = 2 } ORTLoggingLevel;
typedef enum { ORTTensorElementDataTypeFloat = 1, ORTTensorElementDataTypeInt64 = 7 } ORTTensorElementDataType;

@interface ORTEnv : NSObject {
  @public
    struct OrtEnv *handle;
}
- (id)initWithLoggingLevel:(ORTLoggingLevel)level error:(NSError **)error;
@end

@interface ORTSessionOptions : NSObject {
  @public
    struct OrtSessionOptions *handle;
}
- (id)initWithError:(NSError **)error;
@end

/// A tensor over the bytes of a data object, which it keeps.
@interface ORTValue : NSObject {
  @public
    struct OrtValue *handle;
    NSMutableData *data;
}
- (id)initWithTensorData:(NSMutableData *)tensorData
             elementType:(ORTTensorElementDataType)elementType
                   shape:(NSArray *)shape
                   error:(NSError **)error;
/// The bytes of a float tensor, without a copy; they live as long as the value.
- (NSMutableData *)tensorDataWithError:(NSError **)error;
@end

@interface ORTSession : NSObject {
  @public
    struct OrtSession *handle;
    ORTEnv *env;
}
- (id)initWithEnv:(ORTEnv *)env modelPath:(NSString *)path sessionOptions:(ORTSessionOptions *)sessionOptions error:(NSError **)error;
- (NSDictionary *)runWithInputs:(NSDictionary *)inputs outputNames:(NSSet *)outputNames runOptions:(id)runOptions error:(NSError **)error;
@end

@interface ORTCheckpoint : NSObject {
  @public
    struct OrtCheckpointState *handle;
}
- (id)initWithPath:(NSString *)path error:(NSError **)error;
- (BOOL)saveCheckpointToPath:(NSString *)path withOptimizerState:(BOOL)includeOptimizerState error:(NSError **)error;
- (BOOL)addFloatPropertyWithName:(NSString *)name value:(float)value error:(NSError **)error;
- (float)getFloatPropertyWithName:(NSString *)name error:(NSError **)error;
@end

@interface ORTTrainingSession : NSObject {
  @public
    struct OrtTrainingSession *handle;
    ORTEnv *env;
    ORTCheckpoint *checkpoint;
}
- (id)initWithEnv:(ORTEnv *)env
        sessionOptions:(ORTSessionOptions *)sessionOptions
            checkpoint:(ORTCheckpoint *)checkpoint
        trainModelPath:(NSString *)trainModelPath
         evalModelPath:(NSString *)evalModelPath
    optimizerModelPath:(NSString *)optimizerModelPath
                 error:(NSError **)error;
- (NSArray *)trainStepWithInputValues:(NSArray *)inputs error:(NSError **)error;
- (NSArray *)evalStepWithInputValues:(NSArray *)inputs error:(NSError **)error;
- (BOOL)lazyResetGradWithError:(NSError **)error;
- (BOOL)optimizerStepWithError:(NSError **)error;
- (BOOL)registerLinearLRSchedulerWithWarmupStepCount:(int64_t)warmupStepCount
                                      totalStepCount:(int64_t)totalStepCount
                                           initialLr:(float)initialLr
                                               error:(NSError **)error;
- (BOOL)schedulerStepWithError:(NSError **)error;
- (float)getLearningRateWithError:(NSError **)error;
- (BOOL)exportModelForInferenceWithOutputPath:(NSString *)inferenceModelPath graphOutputNames:(NSArray *)graphOutputNames error:(NSError **)error;
@end
