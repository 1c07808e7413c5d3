#!/usr/bin/env python3
"""What the benches refuse: flags that nothing would follow, and work that the model or the machine cannot do."""

import unittest

from model_command_util import DATA, ModelCommand, lathe


class BenchEngine(ModelCommand):
    def engine(self, *args: str):
        return lathe("bench", "engine", "--load-format", "dummy", "--config", str(self.model / "config.json"), "--device", "cpu", "-r", "1", *args)

    def test_a_test_beyond_the_context_is_refused_before_weights_are_read(self):
        context = self.context
        for args, flag, offered, way_out in (
                (["-p", str(context), "-n", "0"], "--n-prompt", f"pp{context} at depth 0: {context + 1}", f"at most {context - 1} tokens at that depth"),
                (["-p", "0", "-n", str(context)], "--n-gen", f"tg{context} at depth 0: {context + 2}", f"at most {context - 2} tokens at that depth"),
                (["-p", "8", "-n", "8", "-d", str(context - 9)], "--n-gen, --n-depth", f"tg8 at depth {context - 9}: {context + 1}",
                 "at most 7 tokens at that depth"),
                (["--tests", f"pp8@{context + 9}"], "--tests", f"pp8 at depth {context + 9}: {context + 18}", "a smaller depth"),
                (["--context-length", "64", "-p", "63,64", "-n", "0"], "--n-prompt", "pp64 at depth 0: 65", "--context-length 65")):
            result = self.engine(*args)  # not --quiet: a line of loaded weights would show
            wanted = f"tests within the context of {64 if '--context-length' in args else context} tokens"
            self.assertEqual((result.returncode, result.stdout, result.stderr), (2, "", f"lathe: {flag}: wanted {wanted}, got {offered}; {way_out}\n"))
        for args in (["-p", "55", "-n", "54", "-d", "8"], ["--tests", "pp63,tg62"]):  # just within
            result = self.engine("--context-length", "64", *args, "--quiet")
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_flags_of_drafts_need_a_test_of_decode(self):
        for flag, *more in (["--draft", "ngram"], ["--draft-acceptance", "0.5", "--draft", "none"], ["--draft-tokens", "2"],
                            ["--speculative-draft-model-path", str(DATA / "models/qwen3"), "--speculative-algorithm", "STANDALONE"]):
            for tests, offered in ((["-n", "0"], "--n-gen 0"), (["--tests", "pp8,pp4@4"], "--tests pp8,pp4@4")):
                result = self.engine(flag, *more, *tests)
                self.assertEqual((result.returncode, result.stderr), (2, f"lathe: {flag}: wanted a test of decode with it, got {offered}; leave it out\n"))
        result = self.engine("--draft-acceptance", "0.5", "-p", "8", "-n", "4")
        self.assertEqual((result.returncode, result.stderr),
                         (2, "lathe: --draft-acceptance: wanted a drafter with it, got --draft none; --draft ngram, mtp or DIR\n"))
        result = self.engine("--draft", "ngram", "--tests", "pp8,tg4", "--quiet")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_flags_of_prefixes_need_a_test_that_has_them(self):
        for args, said in ((["--shared-prefix-tokens", "64", "-d", "64"],
                            "--shared-prefix-tokens: wanted a test of 2 requests or more, which share them, got 1 request in every test; --batch 2"),
                           (["--shared-prefix-tokens", "64", "--tests", "tg4@64x2", "--disable-radix-cache"],
                            "--shared-prefix-tokens: wanted a prefix cache with it, got --disable-radix-cache; leave one of them out"),
                           (["-d", "8", "--no-prefix-cache"],
                            "--disable-radix-cache: wanted prefill at depth 0, as the cache keeps no tokens, got pp512@8; leave it out")):
            result = self.engine(*args)
            self.assertEqual((result.returncode, result.stderr), (2, f"lathe: {said}\n"))


if __name__ == "__main__":
    unittest.main()
