#!/usr/bin/env python3
"""Uses the server's page in a headless browser (make page-test: Debian's chromium, selenium from PyPI).

usage: page_test.py LATHE [SCREENSHOTS]: with a folder, pictures of the views go there.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import unittest

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

LATHE = sys.argv.pop(1)
PICTURES = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
MODEL = pathlib.Path(__file__).resolve().parent.parent / "models" / "tiny-v32"
QUESTION = "Rosa has 21 apples. Alice has 6 times as many apples as Rosa. How many more apples does Alice have than Rosa?"
ALLOWED = {"P", "DIV", "PRE", "CODE", "BUTTON", "A", "STRONG", "EM", "UL", "OL", "LI", "BLOCKQUOTE", "TABLE", "THEAD", "TBODY", "TR", "TH", "TD",
           "H3", "H4", "H5", "H6", "DETAILS", "SUMMARY"}
HOSTILE = [
    "<script>document.title='x'</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "<a href='javascript:alert(1)'>x</a>",
    "[x](javascript:alert(1))", "[x](data:text/html,<script>alert(1)</script>)", "[x](vbscript:x)", "[x](JaVaScRiPt:alert(1))", "[x]( javascript:alert(1))",
    "![x](http://evil.example/x.png)", "[[x](http://a.example)](javascript:alert(1))", "**<b onclick=alert(1)>**", "`<script>`", "```html\n<script>alert(1)</script>\n```",
    "```\n</code></pre><script>alert(1)</script>", "| a | b |\n| --- | --- |\n| <img src=x onerror=alert(1)> | [y](javascript:1) |", "> <iframe src=//evil.example>",
    "- <object data=x>", "1. <embed src=x>", "# <style>*{display:none}</style>", "<scr", "<script", "</div></main><script>alert(1)</script>", "&lt;script&gt;",
    "<math><mtext></table><mglyph><style><img src=x onerror=alert(1)>", "\u2028<script>\u2029", "[x](http://a.example\" onmouseover=\"alert(1))", "<base href=//evil.example>",
    "<form action=//evil.example><input name=x>", "<meta http-equiv=refresh content=0>", "*" * 500 + "x", "> " * 200 + "deep", "[" * 300 + "](x)" * 300,
    "`" * 301, "- " * 100 + "x", "<details open ontoggle=alert(1)>", "<input autofocus onfocus=alert(1)>", "[x](http://a.example)<script>", "\\<script\\>",
]


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen([LATHE, "serve", "--model", str(MODEL), "--port", "0", "--api-key", "k"], stderr=subprocess.PIPE, text=True)
        found = None
        for line in cls.process.stderr:
            if found := re.match(r"ready .*:(\d+)", line):
                break
        cls.url = f"http://127.0.0.1:{found[1]}"
        threading.Thread(target=cls.process.stderr.read, daemon=True).start()
        options = webdriver.ChromeOptions()
        browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        options.binary_location = browser
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        cls.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))

    @classmethod
    def tearDownClass(cls):
        cls.driver.quit()
        cls.process.kill()
        cls.process.wait()
        cls.process.stderr.close()

    def setUp(self):
        self.driver.get(self.url + "/health")
        self.driver.execute_script("sessionStorage.setItem('lathe-key', 'k'); localStorage.clear()")
        self.driver.get_log("browser")
        self.driver.set_window_size(1000, 900)

    def open(self, path="/"):
        self.driver.get(self.url + path)
        self.until(lambda d: "tiny-v32" in d.title)

    def until(self, condition):
        return WebDriverWait(self.driver, 60).until(condition)

    def find(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def picture(self, name):
        if PICTURES:
            PICTURES.mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(PICTURES / f"{name}.png"))

    def no_errors(self):
        self.assertEqual([e for e in self.driver.get_log("browser") if e["level"] == "SEVERE"], [])

    def test_a_conversation_by_keyboard(self):
        self.open()
        self.find("#text").send_keys(QUESTION, Keys.ENTER)
        self.until(lambda d: self.find("#status").text == "Done")
        answer = self.driver.find_elements(By.CSS_SELECTOR, ".turn")[-1].text
        self.assertIn("#### 105", answer)
        self.assertRegex(answer, r"\d+ tokens, [\d.]+ tokens/s, first after \d+ ms, \d+ of \d+ prompt tokens cached, finish: stop")
        self.picture("chat")
        # It is there after a reload, the last message comes back by ↑, and history can be erased.
        self.open()
        self.assertIn("#### 105", self.find("#turns").text)
        self.find("#text").send_keys(Keys.ARROW_UP)
        self.assertEqual(self.find("#text").get_attribute("value"), QUESTION)
        self.find("#erase").click()
        self.assertEqual(self.driver.execute_script("return localStorage.getItem('lathe-turns')"), "[]")
        self.no_errors()

    def test_escape_stops_an_answer(self):
        self.open()
        self.driver.execute_script("document.getElementById('temperature').value = '2'; document.getElementById('max_tokens').value = '8000'")
        before = self.metric("lathe_aborted_requests_total")
        for _ in range(20):  # a short answer may end by itself
            self.find("#text").send_keys("list", Keys.ENTER)
            self.find("#text").send_keys(Keys.ESCAPE)
            self.until(lambda d: self.find("#stop").get_attribute("hidden"))
            if "Stopped." in self.find("#turns").text:
                break
        self.until(lambda d: self.metric("lathe_aborted_requests_total") > before)
        self.no_errors()

    def metric(self, name):
        text = self.driver.execute_async_script("const done = arguments[0]; fetch('/metrics', {headers: {Authorization: 'Bearer k'}}).then(r => r.text()).then(done)")
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    def test_hostile_text_stays_text(self):
        self.driver.execute_script("localStorage.setItem('lathe-turns', arguments[0])",
                                   json.dumps([{"role": "assistant", "content": t, "reasoning": t, "note": t, "calls": [{"name": t, "arguments": t}]} for t in HOSTILE] +
                                              [{"role": "assistant", "content": t[:n]} for t in HOSTILE[:12] for n in range(0, len(t), 5)]))
        self.open()
        self.assertEqual(len(self.driver.find_elements(By.CSS_SELECTOR, ".turn")) > len(HOSTILE), True)
        tags = set(self.driver.execute_script("return [...document.querySelectorAll('.turn > div *')].map(e => e.tagName)"))
        self.assertLessEqual(tags, ALLOWED)
        links = self.driver.execute_script("return [...document.querySelectorAll('.turn a')].map(e => [e.getAttribute('href'), e.rel])")
        for href, rel in links:
            self.assertRegex(href, "^https?://")
            self.assertEqual(rel, "noopener noreferrer")
        handlers = self.driver.execute_script("return [...document.querySelectorAll('.turn *')].flatMap(e => [...e.attributes]).map(a => a.name).filter(n => n.startsWith('on') || n === 'src' || n === 'style')")
        self.assertEqual(handlers, [])
        self.no_errors()

    def test_markdown(self):
        self.driver.execute_script("localStorage.setItem('lathe-turns', arguments[0])", json.dumps([{"role": "assistant", "content":
            "# Head\n\nA **bold** and *slanted* `code` [link](https://a.example).\n\n- one\n- two\n  - deep\n\n1. first\n\n> said\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n```\nx < y\n```"}]))
        self.open()
        self.assertEqual(self.driver.execute_script("""
            const t = document.querySelector('.turn > div'), text = s => t.querySelector(s).textContent;
            return [text('h3'), text('strong'), text('em'), text('p code'), t.querySelector('a').href, t.querySelectorAll('ul ul li').length, text('ol li'), text('blockquote'), text('td'), text('pre')]"""),
            ["Head", "bold", "slanted", "code", "https://a.example/", 1, "first", "said", "1", "x < y"])

    def test_the_plan_tells_its_reasons(self):
        self.open("/plan")
        self.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".cell"))
        self.assertIn("prefill", self.find("#plan").text)
        refused = self.driver.find_elements(By.CSS_SELECTOR, ".cell.refused")[0]
        self.driver.execute_script("arguments[0].focus()", refused)
        self.assertRegex(self.find("#plan").text, r"refused\n.*wanted .*, offered ")
        widths = self.driver.execute_script("return [...document.querySelectorAll('.bar')].map(b => b.getBoundingClientRect().width)")
        self.assertGreater(len(set(widths)), 1)
        self.find(".cell[tabindex='0']").send_keys(Keys.ARROW_RIGHT)
        self.assertEqual(self.driver.switch_to.active_element.get_attribute("class").split()[0], "cell")
        self.driver.set_window_size(1000, 2200)
        self.picture("plan")
        self.no_errors()

    def test_live_figures(self):
        self.open()
        self.find("#tab-live").click()
        self.until(lambda d: self.find("#now-running").text != "")
        self.find("#live button").click()
        self.assertEqual(self.find("#live button").text, "Go on")
        self.picture("live")
        self.no_errors()

    def test_a_wrong_key_is_told(self):
        self.open()
        self.driver.execute_script("sessionStorage.setItem('lathe-key', 'wrong'); window.prompt = () => null")
        self.find("#text").send_keys("a", Keys.ENTER)
        self.until(lambda d: self.find("#status").text == "Failed")
        self.assertIn("wanted \"Bearer \" and an API key", self.find("#turns").text)

    def test_it_is_narrow_dark_and_named(self):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 320, "height": 700, "deviceScaleFactor": 1, "mobile": False})
        try:
            for view in ("chat", "plan", "live"):
                self.open("/plan" if view == "plan" else "/")
                if view == "chat":
                    self.find("#text").send_keys(QUESTION, Keys.ENTER)
                    self.until(lambda d: self.find("#status").text == "Done")
                    self.find("summary").click()
                elif view == "plan":
                    self.until(lambda d: d.find_elements(By.CSS_SELECTOR, ".cell"))
                else:
                    self.find("#tab-live").click()
                    self.until(lambda d: self.find("#now-running").text != "")
                self.picture("narrow-dark-" + view)
                self.assertLessEqual(self.driver.execute_script("return document.documentElement.scrollWidth"), 320)
                for e in self.driver.find_elements(By.CSS_SELECTOR, "button, input, textarea, select"):
                    if e.is_displayed():
                        self.assertTrue(e.accessible_name, e.get_attribute("outerHTML"))
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


if __name__ == "__main__":
    unittest.main(verbosity=1)
