/* What the tests of the C interface share: checks, random numbers and tensors. */
#ifndef LATHE_C_API_TEST_H
#define LATHE_C_API_TEST_H

#include <lathe/lathe.h>
#include <stdio.h>
#include <stdlib.h>

extern int failures;

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                     \
    }                                                                 \
  } while (0)

#define MUST(call)                                                                             \
  do {                                                                                         \
    const lathe_status must_status = (call);                                                   \
    if (must_status != LATHE_OK) {                                                             \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, lathe_last_error()->text); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

/* The call fails with this status, and its error has the field and in `wanted` and `offered` these
 * words. */
#define FAILS(call, status_, field_, wanted_, offered_) \
  fails((call), (status_), (field_), (wanted_), (offered_), __FILE__, __LINE__)

void fails(lathe_status got, lathe_status status, const char* field, const char* wanted,
           const char* offered, const char* file, int line);

/* Random: 31 bits, and a number from -1 to 1. */
uint32_t next(void);
float number(void);

/* float32 to the nearest bfloat16, ties to even. */
uint16_t to_bf16(float x);
float from_bf16(uint16_t bits);

/* A tensor in host memory. */
lathe_tensor tensor(void* data, uint8_t code, uint8_t bits, int32_t axes, int64_t* shape);

/* In c_api_attention.c */
void test_attention(void);
void test_workspace(void);
void test_index_lists(void);
void test_bad_attention(void);
void test_merge(void);

/* In c_api_codec.c */
void test_codecs(void);
void test_copies(void);

/* In c_api_engine.c. prompts and responses: answers that are marked right. */
void test_bad_engines(const char* model);
void test_engine(const char* model, char* prompts[3], char* responses[3]);
void test_salts_and_priorities(const char* model);

#endif
